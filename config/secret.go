package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Secret says where a secret stands: {file: PATH} or {env: NAME}. The value
// itself is never in the configuration, and whatever prints a Secret prints ***.
// The zero Secret is an absent one.
type Secret struct {
	// File is a file that holds the secret alone, on one line. It is read at the
	// start and with each reload of the configuration, so SIGHUP puts a replaced
	// file into use.
	File string `yaml:"file" pattern:"." want:"a path, write for example /run/secrets/token"`
	// Env is an environment variable that holds the secret.
	Env string `yaml:"env" pattern:"^[A-Za-z_][A-Za-z0-9_]*$" want:"the name of an environment variable, write for example WOPPROXY_TOKEN"`
}

// maxSecret bounds what Read takes for a secret: whoever points it at a device
// gets an error.
const maxSecret = 64 << 10

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s == Secret{} }

// Read fetches the secret; lookup is os.LookupEnv or stands in for it. One line
// break at the end is dropped. A secret that is absent, empty, or unfit for a
// header (control characters, further lines, more than 64 KiB) is an error, and
// no error holds any of it. Read of the zero Secret is an error: ask IsZero.
func (s Secret) Read(lookup func(name string) (value string, ok bool)) (string, error) {
	var value, source string
	switch {
	case s.File != "":
		var err error
		if value, err = readFile(s.File); err != nil {
			return "", fmt.Errorf("read secret: %w", err)
		}
		source = "file " + s.File
	case s.Env != "":
		var ok bool
		source = "environment variable " + s.Env
		if value, ok = lookup(s.Env); !ok {
			return "", fmt.Errorf("read secret: %s is not set", source)
		}
	default:
		return "", errors.New("read secret: none is configured")
	}
	value = strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r")
	if err := fit(value); err != nil {
		return "", fmt.Errorf("read secret: %s %w", source, err)
	}
	return value, nil
}

func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	// A line break and one byte more than allowed: enough to tell that it is too
	// long, or has a second line.
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+3))
	return string(b), err
}

// fit refuses what could not be sent in a header.
func fit(v string) error {
	switch {
	case v == "":
		return errors.New("is empty")
	case len(v) > maxSecret:
		return errors.New("is larger than 64 KiB")
	case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("holds a line break or another control character")
	}
	return nil
}

// Format prints ***, with any verb and flag, or nothing for an absent secret.
func (s Secret) Format(f fmt.State, _ rune) {
	text, _ := s.MarshalText()
	_, _ = f.Write(text)
}

// MarshalText returns ***, or nothing for an absent secret.
func (s Secret) MarshalText() ([]byte, error) {
	if s.IsZero() {
		return nil, nil
	}
	return []byte("***"), nil
}
