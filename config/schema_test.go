package config_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/config"
)

const schemaFile = "wopproxy.schema.json"

// key is one key of the file with all that its field says about it.
type key struct {
	path    string
	field   reflect.StructField
	value   reflect.Value // its default
	comment string        // the field's doc comment, on one line
}

func (k key) tag(name string) string { return k.field.Tag.Get(name) }

// isSection reports whether the key has keys below it.
func (k key) isSection() bool {
	return len(below(k)) > 0 && k.field.Type != reflect.TypeFor[config.Secret]()
}

// below returns the keys of a section, in the order of the struct.
func below(k key) []key {
	if k.value.Kind() != reflect.Struct {
		return nil
	}
	comments := docComments[k.value.Type().Name()]
	var keys []key
	for f, v := range k.value.Fields() {
		if name := f.Tag.Get("yaml"); name != "" {
			keys = append(keys, key{strings.TrimPrefix(k.path+"."+name, "."), f, v, comments[f.Name]})
		}
	}
	return keys
}

// root stands for the file as a whole.
func root() key { return key{value: reflect.ValueOf(*config.Default())} }

// allKeys returns the keys of the file, sections and values, in order.
func allKeys() []key {
	var keys []key
	var walk func(key)
	walk = func(k key) {
		keys = append(keys, k)
		if k.isSection() {
			for _, k := range below(k) {
				walk(k)
			}
		}
	}
	for _, k := range below(root()) {
		walk(k)
	}
	return keys
}

func leafKeys() []string {
	var paths []string
	for _, k := range allKeys() {
		if !k.isSection() {
			paths = append(paths, k.path)
		}
	}
	return paths
}

// docComments holds the doc comment of each field, by type and name: the
// comments are the manual, and the descriptions of the schema.
var docComments = func() map[string]map[string]string {
	comments := map[string]map[string]string{}
	for _, file := range []string{"config.go", "secret.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				fields := map[string]string{}
				for _, f := range s.Fields.List {
					if len(f.Names) == 1 {
						fields[f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
				comments[spec.Name.Name] = fields
			}
			return false
		})
	}
	return comments
}()

// text renders a default as the file would say it.
func text(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case slog.Level:
		return strings.ToLower(x.String())
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		if err != nil {
			panic(err)
		}
		if len(b) == 0 {
			return "none"
		}
		return string(b)
	}
	switch v.Kind() {
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = text(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Map:
		return "{}"
	}
	if v.IsZero() && v.Kind() == reflect.String {
		return "none"
	}
	return fmt.Sprint(v.Interface())
}

// TestManual holds each comment to what the field really does.
func TestManual(t *testing.T) {
	for _, k := range allKeys() {
		if !strings.HasPrefix(k.comment, k.field.Name+" ") {
			t.Errorf("%s: comment %q does not begin with the name of the field", k.path, k.comment)
		}
		if k.isSection() {
			continue
		}
		says := func(s string) bool {
			return strings.Contains(k.comment+" ", s+". ") || strings.Contains(k.comment, s+";") ||
				strings.Contains(k.comment, s+",") || strings.Contains(k.comment, s+":")
		}
		if k.tag("required") != "" {
			if !says("No default: required") {
				t.Errorf("%s is required, the comment does not say so: %q", k.path, k.comment)
			}
		} else if want := "Default " + text(k.value); !says(want) {
			t.Errorf("%s: want %q in comment %q", k.path, want, k.comment)
		}
		if want := k.tag("min") + " to " + k.tag("max"); k.tag("min") != "" && !says(want) {
			t.Errorf("%s: want %q in comment %q", k.path, want, k.comment)
		}
		if (k.tag("restart") != "") != strings.Contains(k.comment, "needs a restart") {
			t.Errorf("%s: restart tag %q, comment %q", k.path, k.tag("restart"), k.comment)
		}
		for word := range strings.SplitSeq(k.tag("enum"), "|") {
			if !strings.Contains(k.comment, word) {
				t.Errorf("%s: comment %q does not name %s", k.path, k.comment, word)
			}
		}
	}
}

// TestLimits tries every min and max from both sides.
func TestLimits(t *testing.T) {
	for _, k := range allKeys() {
		if k.tag("min") == "" {
			continue
		}
		want := fmt.Sprintf("is out of range, write %s to %s", k.tag("min"), k.tag("max"))
		for name, limit := range map[string]string{"min": k.tag("min"), "max": k.tag("max")} {
			if got := mistakeAt(t, k, limit); strings.Contains(got, want) {
				t.Errorf("%s: %s is refused: %s", k.path, limit, got)
			}
			beyond := beyond(t, k, limit, name == "max")
			if got := mistakeAt(t, k, beyond); beyond != "" && !strings.Contains(got, want) {
				t.Errorf("%s: %s: mistake %q, want %q", k.path, beyond, got, want)
			}
		}
	}
}

// beyond returns the nearest value that is not within the limit, or "" where
// the notation has none.
func beyond(t *testing.T, k key, limit string, upper bool) string {
	t.Helper()
	step := int64(-1)
	if upper {
		step = 1
	}
	var err error
	defer func() {
		if err != nil {
			t.Fatalf("%s: %v", k.path, err)
		}
	}()
	switch k.value.Interface().(type) {
	case config.Duration:
		var d config.Duration
		err = d.UnmarshalText([]byte(limit))
		if n := int64(d.Duration) + step; n >= 0 {
			return fmt.Sprintf("%dns", n)
		}
		return "" // no duration is negative, whatever the limits
	case config.Bytes:
		var b config.Bytes
		err = b.UnmarshalText([]byte(limit))
		return strconv.FormatInt(int64(b)+step, 10)
	case float64:
		return fmt.Sprint(float64(step) * 1.0001)
	}
	var n int64
	n, err = strconv.ParseInt(limit, 10, 64)
	return strconv.FormatInt(n+step, 10)
}

// mistakeAt parses a file that sets one key more than it has to, and returns
// what is wrong with that key.
func mistakeAt(t *testing.T, k key, value string) string {
	t.Helper()
	var doc map[string]any
	var x any
	if err := errors.Join(yaml.Unmarshal([]byte(required), &doc), yaml.Unmarshal([]byte(value), &x)); err != nil {
		t.Fatal(err)
	}
	if k.value.Kind() == reflect.Slice {
		x = []any{x}
	}
	path := strings.Split(k.path, ".")
	section := doc
	for _, name := range path[:len(path)-1] {
		if section[name] == nil {
			section[name] = map[string]any{}
		}
		section = section[name].(map[string]any)
	}
	section[path[len(path)-1]] = x
	file, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = config.Parse(bytes.NewReader(file))
	mistakes, _ := errors.AsType[config.Mistakes](err)
	for _, m := range mistakes {
		if m.Key == k.path || strings.HasPrefix(m.Key, k.path+"[") {
			return m.Error()
		}
	}
	return ""
}

// TestEnums tries every word of every enum, and another one.
func TestEnums(t *testing.T) {
	for _, k := range allKeys() {
		if k.tag("enum") == "" {
			continue
		}
		for word := range strings.SplitSeq(k.tag("enum"), "|") {
			if got := mistakeAt(t, k, word); got != "" {
				t.Errorf("%s: %s is refused: %s", k.path, word, got)
			}
		}
		for _, word := range []string{"other", `""`, `"|"`, k.tag("enum")} {
			if got := mistakeAt(t, k, word); !strings.Contains(got, "is not known, write one of ") {
				t.Errorf("%s: %s: mistake %q", k.path, word, got)
			}
		}
	}
}

// TestSchema compares the schema with the types; -update rewrites it.
func TestSchema(t *testing.T) {
	s := schemaOf(root())
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "wopproxy.yaml"
	s.Types, s.Type = nil, "object"
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, buf.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(readFile(t, schemaFile)), buf.String()); diff != "" {
		t.Errorf("%s is stale, run go test -update (-file +types):\n%s", schemaFile, diff)
	}
}

// forms are the schemas of the types that parse themselves.
func forms() map[reflect.Type]*jsonschema.Schema {
	pattern := func(p string) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Pattern: p} }
	zero := any(0)
	return map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[config.URL]():         pattern(config.URLPattern),
		reflect.TypeFor[config.Address]():     pattern(config.AddressPattern),
		reflect.TypeFor[config.HeaderName]():  pattern(config.HeaderPattern),
		reflect.TypeFor[config.CIDR]():        pattern(config.CIDRPattern),
		reflect.TypeFor[config.Time]():        pattern(config.TimePattern),
		reflect.TypeFor[config.HostPattern](): pattern(config.HostPatternPattern),
		reflect.TypeFor[config.Origin]():      pattern(config.OriginPattern),
		reflect.TypeFor[config.Route]():       pattern(config.RoutePattern),
		reflect.TypeFor[slog.Level]():         {Type: "string"},
		reflect.TypeFor[config.Duration]():    {AnyOf: []*jsonschema.Schema{pattern(config.DurationPattern), {Const: &zero}}},
		reflect.TypeFor[config.Bytes]():       {AnyOf: []*jsonschema.Schema{pattern(config.BytesPattern), {Type: "integer", Minimum: new(0.0)}}},
	}
}

// schemaOf returns what the file may hold at a key.
func schemaOf(k key) *jsonschema.Schema {
	s := schemaOfType(k.value, k)
	s.Description = strings.Replace(k.comment, k.field.Name, k.tag("yaml"), 1)
	none := text(k.value) == "none" || k.value.Kind() == reflect.String && k.value.IsZero()
	if k.path != "" && !k.isSection() && k.tag("required") == "" && !none {
		s.Default = defaultJSON(k.value)
	}
	return s
}

func schemaOfType(v reflect.Value, k key) *jsonschema.Schema {
	if form, ok := forms()[v.Type()]; ok {
		return constrain(form, k, v)
	}
	switch v.Kind() {
	case reflect.Slice:
		return &jsonschema.Schema{Types: []string{"array", "null"}, Items: schemaOfType(reflect.Zero(v.Type().Elem()), k)}
	case reflect.Map:
		return &jsonschema.Schema{
			Types:                []string{"object", "null"},
			PropertyNames:        &jsonschema.Schema{Pattern: config.HeaderPattern},
			AdditionalProperties: schemaOfType(reflect.Zero(v.Type().Elem()), key{}),
		}
	case reflect.Struct:
		return section(key{path: k.path, field: k.field, value: v})
	case reflect.Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case reflect.Int:
		return constrain(&jsonschema.Schema{Type: "integer"}, k, v)
	case reflect.Float64:
		return constrain(&jsonschema.Schema{Type: "number"}, k, v)
	}
	return constrain(&jsonschema.Schema{Type: "string"}, k, v)
}

func section(k key) *jsonschema.Schema {
	s := &jsonschema.Schema{
		Types:                []string{"object", "null"},
		Properties:           map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for _, k := range below(k) {
		name := k.tag("yaml")
		s.Properties[name] = schemaOf(k)
		s.PropertyOrder = append(s.PropertyOrder, name)
		if k.tag("required") != "" || requires(k) {
			s.Required = append(s.Required, name)
		}
	}
	if len(s.Required) > 0 { // nothing there is not what is required there
		s.Types, s.Type = nil, "object"
	}
	if k.value.Type() == reflect.TypeFor[config.Secret]() {
		s.Types, s.Type = nil, "object"
		s.MinProperties, s.MaxProperties = new(1), new(1)
	}
	return s
}

// requires reports whether a key below k is required.
func requires(k key) bool {
	for _, k := range below(k) {
		if k.tag("required") != "" || requires(k) {
			return true
		}
	}
	return false
}

// constrain adds what the tags say of a value.
func constrain(s *jsonschema.Schema, k key, v reflect.Value) *jsonschema.Schema {
	if k.tag("enum") != "" {
		for word := range strings.SplitSeq(k.tag("enum"), "|") {
			s.Enum = append(s.Enum, word)
		}
	}
	if k.tag("pattern") != "" {
		s.Pattern = k.tag("pattern")
	}
	if k.tag("min") != "" && (v.Kind() == reflect.Int || v.Kind() == reflect.Float64) {
		lowest, err1 := strconv.ParseFloat(k.tag("min"), 64)
		highest, err2 := strconv.ParseFloat(k.tag("max"), 64)
		if err1 != nil || err2 != nil {
			panic(k.path)
		}
		s.Minimum, s.Maximum = &lowest, &highest
	}
	return s
}

func defaultJSON(v reflect.Value) json.RawMessage {
	x := v.Interface()
	switch {
	case v.Type() == reflect.TypeFor[slog.Level]():
		x = text(v)
	case v.Kind() == reflect.Slice && v.Len() == 0:
		x = []any{}
	case v.Kind() == reflect.Map:
		x = map[string]any{}
	}
	b, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	return b
}

// schemaValidator returns a function that asks the checked-in schema about a
// file. A file that is not one YAML document is refused.
func schemaValidator(t testing.TB) func(file []byte) error {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return func(file []byte) error {
		var doc any
		if err := yaml.Unmarshal(file, &doc); err != nil {
			return err
		}
		asJSON, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		var instance any
		if err := json.Unmarshal(asJSON, &instance); err != nil {
			return err
		}
		return resolved.Validate(instance)
	}
}
