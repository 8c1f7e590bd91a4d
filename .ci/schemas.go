// Command schemas makes what kubeconform checks manifests against: a JSON schema for
// each kind of Kubernetes' own, out of the OpenAPI document of its module, and for
// each kind of the custom resource definitions that it is given.
//
//	go run .ci/schemas.go OUT SWAGGER.json [CRD.yaml ...]
//
// The schemas are closed: a property that a type does not have is an error.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: go run .ci/schemas.go OUT SWAGGER.json [CRD.yaml ...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

type schema = map[string]any

func run(out, swagger string, crds []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	n, err := native(out, swagger)
	for _, name := range crds {
		var more int
		if err == nil {
			more, err = custom(out, name)
		}
		n += more
	}
	if err == nil {
		fmt.Printf("%d schemas in %s\n", n, out)
	}
	return err
}

// kind names what a schema is for.
type kind struct{ Group, Version, Kind string }

// file is the name by which kubeconform looks for it: {{.ResourceKind}}{{.KindSuffix}}.
func (k kind) file() string {
	group, _, _ := strings.Cut(k.Group, ".")
	name := strings.ToLower(k.Kind)
	if group != "" {
		name += "-" + group
	}
	return name + "-" + strings.ToLower(k.Version) + ".json"
}

func write(out string, k kind, s schema) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, k.file()), text, 0o644)
}

// native writes the kinds of the OpenAPI document, each with all that it refers to.
func native(out, swagger string) (n int, err error) {
	text, err := os.ReadFile(swagger)
	if err != nil {
		return 0, err
	}
	var doc struct{ Definitions map[string]schema }
	if err := json.Unmarshal(text, &doc); err != nil {
		return 0, fmt.Errorf("%s: %w", swagger, err)
	}
	all := doc.Definitions
	// The document says string of what may be a number as well.
	all["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = schema{"type": []string{"string", "integer"}}
	all["io.k8s.apimachinery.pkg.api.resource.Quantity"] = schema{"type": []string{"string", "number"}}
	for _, s := range all {
		closeObjects(s)
	}
	for _, s := range all {
		kinds, err := json.Marshal(s["x-kubernetes-group-version-kind"])
		if err != nil {
			return n, err
		}
		var of []kind
		if err := json.Unmarshal(kinds, &of); err != nil {
			return n, err
		}
		if len(of) != 1 {
			continue // nothing of its own, or what every group has, like DeleteOptions
		}
		needs := map[string]schema{}
		collect(s, all, needs)
		whole := schema{"definitions": needs}
		for key, v := range s {
			whole[key] = v
		}
		if err := write(out, of[0], whole); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// collect finds the definitions that v refers to, however far.
func collect(v any, all, found map[string]schema) {
	switch v := v.(type) {
	case []any:
		for _, below := range v {
			collect(below, all, found)
		}
	case schema:
		ref, _ := v["$ref"].(string)
		if name, ok := strings.CutPrefix(ref, "#/definitions/"); ok && found[name] == nil {
			found[name] = all[name]
			collect(all[name], all, found)
		}
		for _, below := range v {
			collect(below, all, found)
		}
	}
}

// closeObjects refuses properties that are not named, where any are.
func closeObjects(v any) {
	switch v := v.(type) {
	case []any:
		for _, below := range v {
			closeObjects(below)
		}
	case schema:
		_, named := v["properties"].(schema)
		_, said := v["additionalProperties"]
		if named && !said && v["x-kubernetes-preserve-unknown-fields"] != true {
			v["additionalProperties"] = false
		}
		if v["x-kubernetes-int-or-string"] == true {
			delete(v, "anyOf")
			v["type"] = []string{"string", "integer"}
		}
		for _, below := range v {
			closeObjects(below)
		}
	}
}

// custom writes the kinds of a custom resource definition, one for each version.
func custom(out, name string) (n int, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	var crd struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema schema `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	for _, v := range crd.Spec.Versions {
		s := v.Schema.OpenAPIV3Schema
		if s == nil {
			return n, fmt.Errorf("%s has no schema for %s", name, v.Name)
		}
		closeObjects(s)
		// What every object has, the definition leaves to the API server.
		s["properties"].(schema)["metadata"] = schema{"type": "object"}
		if err := write(out, kind{crd.Spec.Group, v.Name, crd.Spec.Names.Kind}, s); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
