package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxFile bounds what Parse reads: a larger file is not a configuration.
const maxFile = 1 << 20

// Mistake is one thing wrong with a configuration.
type Mistake struct {
	Key  string // path of the key: "ingress.listen", "runs.start[2]"; "" for the file as a whole
	Line int    // where it stands; 0 for what is missing
	What string // what is wrong and what to do about it
}

func (m Mistake) Error() string {
	s := m.What
	if m.Key != "" {
		s = m.Key + ": " + s
	}
	if m.Line > 0 {
		s += " (line " + strconv.Itoa(m.Line) + ")"
	}
	return s
}

// Mistakes is everything wrong with a configuration, in the order of the file,
// what is missing first. Its text has one line for each.
type Mistakes []Mistake

func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i, mistake := range m {
		lines[i] = mistake.Error()
	}
	return strings.Join(lines, "\n")
}

// Load reads the configuration file at path. What is wrong in the file comes as
// [Mistakes], all at once.
func Load(path string) (*Config, error) { return LoadWith(path, "") }

// LoadWith is Load with a second text of configuration, whose keys outrank those of
// the file: lists as a whole, sections key by key. An empty path is no file.
func LoadWith(path, over string) (*Config, error) {
	var f io.Reader = strings.NewReader("")
	if path != "" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("load configuration: %w", err)
		}
		defer file.Close()
		f = file
	}
	c, err := parse(f, strings.NewReader(over))
	switch {
	case err == nil:
		return c, nil
	case path == "":
		return nil, fmt.Errorf("load configuration:\n%w", err)
	}
	return nil, fmt.Errorf("load configuration %s:\n%w", path, err)
}

// Parse reads a configuration file from r, as Load does.
func Parse(r io.Reader) (*Config, error) { return parse(r) }

// parse reads texts of which each outranks those before it.
func parse(texts ...io.Reader) (*Config, error) {
	var root *yaml.Node
	for _, r := range texts {
		text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		if len(text) > maxFile {
			return nil, Mistakes{{What: "the file is larger than 1 MiB, is it the right one?"}}
		}
		over, err := parseYAML(text)
		if err != nil {
			return nil, err
		}
		root = overlay(root, over)
	}
	c := Default()
	d := decoder{lines: map[string]int{}}
	if root != nil {
		d.decode(root, c)
	}
	c.given = d.lines
	d.checkAll(c)
	if len(d.mistakes) > 0 {
		slices.SortStableFunc(d.mistakes, func(a, b Mistake) int { return cmp.Compare(a.Line, b.Line) })
		return nil, d.mistakes
	}
	return c, nil
}

// parseYAML returns the content of the only document in text, or nil for a file
// without one.
func parseYAML(text []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxMistake(err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, Mistakes{{Line: second.Line, What: "a second document begins here, keep one"}}
	case !errors.Is(err, io.EOF):
		return nil, syntaxMistake(err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// overlay returns base with what over says. It changes neither: aliases may refer
// to any part of base, and are not meant.
func overlay(base, over *yaml.Node) *yaml.Node {
	if base != nil && base.Kind == yaml.AliasNode {
		base = base.Alias
	}
	switch {
	case over == nil:
		return base
	case base == nil || base.Kind != yaml.MappingNode || over.Kind != yaml.MappingNode:
		return over
	}
	both := *base
	both.Content = slices.Clone(base.Content)
	base = &both
	for i := 0; i+1 < len(over.Content); i += 2 {
		key, value := over.Content[i], over.Content[i+1]
		at := -1
		for j := 0; j+1 < len(base.Content); j += 2 {
			if base.Content[j].Value == key.Value {
				at = j
			}
		}
		if at < 0 {
			base.Content = append(base.Content, key, value)
			continue
		}
		base.Content[at+1] = overlay(base.Content[at+1], value)
	}
	return base
}

// syntaxMistake moves the line out of the text that the yaml package makes.
func syntaxMistake(err error) Mistakes {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if rest, ok := strings.CutPrefix(what, "line "); ok {
		n, after, _ := strings.Cut(rest, ": ")
		if v, err := strconv.Atoi(n); err == nil {
			line, what = v, after
		}
	}
	return Mistakes{{Line: line, What: "not YAML: " + what}}
}

// Given reports whether the file sets key, such as "tracing.sample", rather
// than leaving its default. It is for values that another source may stand in
// for where the file is silent.
func (c *Config) Given(key string) bool { return c.given[key] > 0 }
