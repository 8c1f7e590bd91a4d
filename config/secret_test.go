package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/config"
)

// TestSecretNeverPrints sends a configuration with secrets through everything
// that prints values, on its own and inside the Config.
func TestSecretNeverPrints(t *testing.T) {
	c, err := config.Load("testdata/valid/every-key.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.Egress.Credentials.Secret = config.Secret{File: "/hunter2/file"}
	c.Ancestry.Auth.Bearer = config.Secret{Env: "HUNTER2"}
	c.Tracing.OTLP.Headers["a"] = config.Secret{Env: "HUNTER2"}
	prints := map[string]func(v any) string{
		"json": func(v any) string { b, err := json.Marshal(v); return fmt.Sprint(string(b), err) },
		"yaml": func(v any) string { b, err := yaml.Marshal(v); return fmt.Sprint(string(b), err) },
		"slog text": func(v any) string {
			var b bytes.Buffer
			slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
			return b.String()
		},
		"slog json": func(v any) string {
			var b bytes.Buffer
			slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
			return b.String()
		},
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%t", "%40v", "%-5.1s"} {
		prints[verb] = func(v any) string { return fmt.Sprintf(verb, v) }
	}
	secret := c.Ancestry.Auth.Bearer
	for name, print := range prints {
		for what, v := range map[string]any{
			"Secret": secret, "*Secret": &secret, "[]Secret": []config.Secret{secret}, "map": c.Tracing.OTLP.Headers,
			"Config": *c, "*Config": c, "Auth": c.Ancestry.Auth, "Credentials": c.Egress.Credentials,
		} {
			got := print(v)
			for _, hidden := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), fmt.Sprintf("%x", "HUNTER2")} {
				if strings.Contains(strings.ToLower(got), strings.ToLower(hidden)) {
					t.Errorf("%s of %s prints the secret: %s", name, what, got)
				}
			}
			if what == "Secret" && !strings.Contains(got, "***") {
				t.Errorf("%s of %s = %q, want ***", name, what, got)
			}
		}
	}
	if got := fmt.Sprint(config.Secret{}); got != "" {
		t.Errorf("an absent secret prints %q", got)
	}
}

func TestSecretRead(t *testing.T) {
	dir := t.TempDir()
	file := func(content string) config.Secret {
		f, err := os.CreateTemp(dir, "secret")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		return config.Secret{File: f.Name()}
	}
	env := map[string]string{"TOKEN": "t0ken", "LINE": "t0ken\n", "EMPTY": "", "LINES": "hunter2\nhunter2"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	longest := strings.Repeat("x", 64<<10)
	for _, tt := range []struct {
		name   string
		secret config.Secret
		want   string
		err    string // the end of the error
	}{
		{"file", file("s3cret"), "s3cret", ""},
		{"file with a line break", file("s3cret\n"), "s3cret", ""},
		{"file with a Windows line break", file("s3cret\r\n"), "s3cret", ""},
		{"file with spaces", file(" s3 cret "), " s3 cret ", ""},
		{"file beyond ASCII", file("gehëim"), "gehëim", ""},
		{"longest file", file(longest + "\r\n"), longest, ""},
		{"file too long", file(longest + "x"), "", " is larger than 64 KiB"},
		{"file too long, with a line break", file(longest + "x\n"), "", " is larger than 64 KiB"},
		{"file that goes on after the longest line", file(longest + "\r\nx"), "", " is larger than 64 KiB"},
		{"file with two line breaks", file("hunter2\n\n"), "", " holds a line break or another control character"},
		{"file with two lines", file("hunter2\nhunter2\n"), "", " holds a line break or another control character"},
		{"file with a tab", file("hunter2\t"), "", " holds a line break or another control character"},
		{"file with DEL", file("hunter2\x7f"), "", " holds a line break or another control character"},
		{"empty file", file(""), "", " is empty"},
		{"file with a line break alone", file("\n"), "", " is empty"},
		{"absent file", config.Secret{File: filepath.Join(dir, "absent")}, "", "absent: no such file or directory"},
		{"variable", config.Secret{Env: "TOKEN"}, "t0ken", ""},
		{"variable with a line break", config.Secret{Env: "LINE"}, "t0ken", ""},
		{"empty variable", config.Secret{Env: "EMPTY"}, "", "environment variable EMPTY is empty"},
		{"variable with lines", config.Secret{Env: "LINES"}, "", "environment variable LINES holds a line break or another control character"},
		{"absent variable", config.Secret{Env: "ABSENT"}, "", "read secret: environment variable ABSENT is not set"},
		{"no secret", config.Secret{}, "", "read secret: none is configured"},
	} {
		got, err := tt.secret.Read(lookup)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.HasSuffix(err.Error(), tt.err) {
			t.Errorf("%s: Read = %.20q, %v, want %.20q, %q", tt.name, got, err, tt.want, tt.err)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || !strings.HasPrefix(err.Error(), "read secret: ")) {
			t.Errorf("%s: error %q", tt.name, err)
		}
		if got := tt.secret.IsZero(); got != (tt.name == "no secret") {
			t.Errorf("%s: IsZero = %v", tt.name, got)
		}
	}
	if _, err := (config.Secret{File: filepath.Join(dir, "absent")}).Read(lookup); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent file: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestSecretRotates shows that nothing is remembered between two reads.
func TestSecretRotates(t *testing.T) {
	s := config.Secret{File: filepath.Join(t.TempDir(), "token")}
	for _, want := range []string{"old", "new"} {
		if err := os.WriteFile(s.File, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(os.LookupEnv); got != want || err != nil {
			t.Errorf("Read = %q, %v, want %q", got, err, want)
		}
	}
}
