package config

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// decoder fills a Config from a YAML tree. It does by reflection what the yaml
// package could do as well, because that one stops looking for mistakes of one
// kind where it finds another, and names Go types instead of keys.
//
// What a field accepts stands in its tags, beside the comment that says so:
//
//	yaml          the key
//	required      what to write; the key has no default
//	enum          the accepted words, separated by |
//	min, max      the limits of a number, in the notation of its type
//	pattern, want a regular expression for a string, and what it means
//	restart       a change takes effect at the next start only
//
// On a list the tags of a value hold for each item.
type decoder struct {
	lines    map[string]int // the keys that were set
	mistakes Mistakes
}

func (d *decoder) decode(root *yaml.Node, c *Config) {
	d.value(root, reflect.ValueOf(c).Elem(), "", "")
	delete(d.lines, "")
}

func (d *decoder) fail(n *yaml.Node, key, format string, args ...any) {
	d.mistakes = append(d.mistakes, Mistake{Key: key, Line: n.Line, What: fmt.Sprintf(format, args...)})
}

// value sets v, the value of key, from n.
func (d *decoder) value(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	for n.Kind == yaml.AliasNode { // the parser has checked that the anchor exists
		n = n.Alias
	}
	switch v.Interface().(type) {
	case Secret:
		d.secret(n, v, key)
		return
	case encoding.TextMarshaler:
		d.text(n, v, key, tag)
		return
	}
	container := v.Kind() == reflect.Struct || v.Kind() == reflect.Map || v.Kind() == reflect.Slice
	if container && n.ShortTag() == "!!null" {
		return // a key left out: what stood below it may be commented out
	}
	d.lines[key] = n.Line
	switch v.Kind() {
	case reflect.Struct:
		d.section(n, v, key)
	case reflect.Slice:
		d.list(n, v, key, tag)
	case reflect.Map:
		d.mapping(n, v, key)
	default:
		d.scalar(n, v, key, tag)
	}
}

// section sets the fields of a struct.
func (d *decoder) section(n *yaml.Node, v reflect.Value, key string) {
	d.pairs(n, key, func(name, value *yaml.Node, path string) {
		var known []string
		for f, field := range v.Fields() {
			if !f.IsExported() {
				continue
			}
			if f.Tag.Get("yaml") == name.Value {
				d.value(value, field, path, f.Tag)
				return
			}
			known = append(known, f.Tag.Get("yaml"))
		}
		d.fail(name, path, "unknown key, the keys here are %s", strings.Join(known, ", "))
	})
}

// mapping sets the entries of a map, whose keys are header names.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, key string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(n, key, func(name, value *yaml.Node, path string) {
		if !matches(headerPattern, name.Value) {
			d.fail(name, path, "%q is not a header name, write for example Authorization", name.Value)
			return
		}
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(value, item, path, "")
		v.SetMapIndex(reflect.ValueOf(name.Value), item)
	})
}

// pairs calls set for each key of a mapping that is set once, and is text.
func (d *decoder) pairs(n *yaml.Node, key string, set func(name, value *yaml.Node, path string)) {
	if n.Kind != yaml.MappingNode {
		advice := "write its keys below it, indented"
		if key == "" {
			advice = "write keys such as host and ingress"
		}
		d.fail(n, key, "%s where a section belongs, %s", kindOf(n), advice)
		return
	}
	first := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		path := keyPath(key, name.Value)
		switch line, twice := first[name.Value]; {
		case name.ShortTag() != "!!str" && name.ShortTag() != "!!merge":
			d.fail(name, key, "%s where a key belongs, write a name", kindOf(name))
		case twice:
			d.fail(name, path, "set twice, first in line %d, keep one", line)
		default:
			first[name.Value] = name.Line
			set(name, value, path)
		}
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, key, "%s where a list belongs, write [a, b] or one item a line after dashes", kindOf(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", key, i), tag)
	}
}

// secret sets a Secret, without ever repeating what stands in its place: that
// may be the secret itself.
func (d *decoder) secret(n *yaml.Node, v reflect.Value, key string) {
	d.lines[key] = n.Line
	if n.ShortTag() == "!!null" {
		d.belongs(n, key, "a secret")
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, key, "a secret does not stand in this file, write {file: PATH} or {env: NAME}")
		return
	}
	before := len(d.mistakes)
	d.section(n, v, key)
	s := v.Interface().(Secret)
	if len(d.mistakes) == before && (s.File == "") == (s.Env == "") {
		d.fail(n, key, "a secret has one source, write either {file: PATH} or {env: NAME}")
	}
}

// text sets a value of a type that parses itself.
func (d *decoder) text(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	d.lines[key] = n.Line
	word := n.Value
	moment := v.Type() == reflect.TypeFor[Time]() && n.ShortTag() == "!!timestamp"
	if n.ShortTag() != "!!str" && !moment {
		var number int64 // YAML has more notations than the types know
		measure := v.Type() == reflect.TypeFor[Duration]() || v.Type() == reflect.TypeFor[Bytes]()
		if !measure || n.ShortTag() != "!!int" || n.Decode(&number) != nil {
			d.belongs(n, key, "text")
			return
		}
		word = strconv.FormatInt(number, 10)
	}
	if !d.word(n, word, key, tag) {
		return
	}
	if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(word)); err != nil {
		d.fail(n, key, "%v", err)
		return
	}
	d.limits(n, v, key, tag)
}

// scalar sets a string, a bool or a number.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	kinds := map[reflect.Kind]struct{ yaml, name string }{
		reflect.String:  {"!!str", "text"},
		reflect.Bool:    {"!!bool", "true or false"},
		reflect.Int:     {"!!int", "a whole number"},
		reflect.Float64: {"!!float", "a number"},
	}
	want := kinds[v.Kind()]
	fits := n.ShortTag() == want.yaml || v.Kind() == reflect.Float64 && n.ShortTag() == "!!int"
	if !fits || n.Decode(v.Addr().Interface()) != nil {
		d.belongs(n, key, want.name)
		return
	}
	if d.word(n, n.Value, key, tag) {
		d.limits(n, v, key, tag)
	}
}

// belongs says that n is of another kind than the one value that belongs there.
func (d *decoder) belongs(n *yaml.Node, key, want string) {
	advice := "write one value"
	switch {
	case n.ShortTag() == "!!null":
		advice = "write it or remove the key"
	case want == "text" && n.Kind == yaml.ScalarNode:
		advice = "put it in quotes if it is meant so"
	case want == "true or false":
		advice = "write one of them"
	case n.ShortTag() == "!!float":
		advice = "write it without a fraction"
	case n.Kind == yaml.ScalarNode:
		advice = "write it without quotes"
	}
	d.fail(n, key, "%s where %s belongs, %s", kindOf(n), want, advice)
}

// word reports whether s is what enum and pattern ask for.
func (d *decoder) word(n *yaml.Node, s, key string, tag reflect.StructTag) bool {
	if enum, ok := tag.Lookup("enum"); ok && !slices.Contains(strings.Split(enum, "|"), s) {
		d.fail(n, key, "%q is not known, write one of %s", s, strings.ReplaceAll(enum, "|", ", "))
		return false
	}
	if pattern, ok := tag.Lookup("pattern"); ok && !regexp.MustCompile(pattern).MatchString(s) {
		d.fail(n, key, "%q is not %s", s, tag.Get("want"))
		return false
	}
	return true
}

// limits checks that v lies between min and max.
func (d *decoder) limits(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	lowest, ok := tag.Lookup("min")
	if !ok {
		return
	}
	highest := tag.Get("max")
	if !atMost(limit(v.Type(), lowest), v) || !atMost(v, limit(v.Type(), highest)) {
		d.fail(n, key, "%v is out of range, write %s to %s", v.Interface(), lowest, highest)
	}
}

// limit parses a min or max tag in the notation of type t.
func limit(t reflect.Type, text string) reflect.Value {
	v := reflect.New(t)
	if err := yaml.Unmarshal([]byte(text), v.Interface()); err != nil {
		panic(fmt.Sprintf("tag of a %v: %v", t, err)) // a test reads every tag
	}
	return v.Elem()
}

// atMost compares two numbers, Durations or sizes. Not a number is at most
// nothing, so it is out of every range.
func atMost(a, b reflect.Value) bool {
	if a.Kind() == reflect.Struct { // Duration
		a, b = a.Field(0), b.Field(0)
	}
	if a.CanInt() {
		return a.Int() <= b.Int()
	}
	return a.Float() <= b.Float()
}

// keyPath appends a key to a path, quoted where it would not read as one.
func keyPath(path, name string) string {
	if !matches(headerPattern, name) || strings.Contains(name, ".") {
		name = fmt.Sprintf("%q", name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// kindOf names what stands in the place of something else.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "true or false"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	}
	return "text"
}
