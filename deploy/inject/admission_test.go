package inject_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/deploy/inject"
)

// response is the part of an answer that tests look at.
type response struct {
	APIVersion, Kind string
	Response         struct {
		UID       string
		Allowed   bool
		PatchType string
		Patch     []byte
		Warnings  []string
	}
}

// review has a pod reviewed, and returns it as it is admitted.
func review(t *testing.T, pod map[string]any, o inject.Options) (map[string]any, *inject.Verdict, response) {
	t.Helper()
	text := asJSON(t, map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": map[string]any{
		"uid": "u-1", "namespace": "prod", "operation": "CREATE", "object": pod,
	}})
	v, err := inject.Review(text, o)
	if err != nil {
		t.Fatal(err)
	}
	var r response
	if err := json.Unmarshal(v.Answer, &r); err != nil {
		t.Fatal(err)
	}
	if r.APIVersion != "admission.k8s.io/v1" || r.Kind != "AdmissionReview" || r.Response.UID != "u-1" || !r.Response.Allowed {
		t.Errorf("the answer is %s, want one for u-1 that allows", v.Answer)
	}
	var admitted any
	if err := json.Unmarshal(asJSON(t, pod), &admitted); err != nil {
		t.Fatal(err)
	}
	if len(r.Response.Patch) > 0 {
		if r.Response.PatchType != "JSONPatch" {
			t.Errorf("patchType = %q", r.Response.PatchType)
		}
		admitted = patched(t, admitted, r.Response.Patch)
	}
	return admitted.(map[string]any), v, r
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// patched applies a JSON Patch, as far as reviews use it.
func patched(t *testing.T, v any, patch []byte) any {
	t.Helper()
	var ops []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(patch, &ops); err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		parts := strings.Split(op.Path, "/")[1:]
		at := v
		for _, part := range parts[:len(parts)-1] {
			at = child(t, at, part)
		}
		last := strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[len(parts)-1])
		switch at := at.(type) {
		case map[string]any:
			_, there := at[last]
			if there != (op.Op != "add") {
				t.Errorf("%s %s, where there is something = %v", op.Op, op.Path, there)
			}
			if op.Op == "remove" {
				delete(at, last)
			} else {
				at[last] = op.Value
			}
		case []any:
			i, err := strconv.Atoi(last)
			if err != nil || op.Op != "replace" {
				t.Fatalf("%s %s of a list", op.Op, op.Path)
			}
			at[i] = op.Value
		default:
			t.Fatalf("%s leads nowhere", op.Path)
		}
	}
	return v
}

func child(t *testing.T, v any, part string) any {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		return v[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	case []any:
		i, err := strconv.Atoi(part)
		if err != nil || i >= len(v) {
			t.Fatalf("%s is no element", part)
		}
		return v[i]
	}
	return nil
}

// at returns what keys lead to.
func at(v any, keys ...string) any {
	for _, key := range keys {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

// pods returns the pods of a manifest, those of its templates with the name of their
// object, as the API server is asked to create them.
func pods(t *testing.T, manifest string) (found []map[string]any) {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(manifest))
	for {
		var o map[string]any
		if err := dec.Decode(&o); err != nil {
			return found
		}
		if o == nil {
			continue
		}
		items := []any{o}
		if list, ok := o["items"].([]any); ok {
			items = list
		}
		for _, item := range items {
			o := item.(map[string]any)
			pod, name := o, o["metadata"].(map[string]any)["name"]
			for _, key := range []string{"spec", "jobTemplate", "spec", "template"} {
				if below, ok := pod[key].(map[string]any); ok && o["kind"] != "Pod" {
					pod = below
				}
			}
			if o["kind"] == "Service" {
				continue
			}
			pod["apiVersion"], pod["kind"] = "v1", "Pod"
			if pod["metadata"] == nil {
				pod["metadata"] = map[string]any{}
			}
			pod["metadata"].(map[string]any)["name"] = name
			claims, _ := at(o, "spec", "volumeClaimTemplates").([]any)
			for _, claim := range claims {
				spec := pod["spec"].(map[string]any)
				volumes, _ := spec["volumes"].([]any)
				spec["volumes"] = append(volumes, map[string]any{"name": at(claim, "metadata", "name")})
			}
			if o["kind"] == "CronJob" {
				pod["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"kind": "Job", "name": name.(string) + "-29012345", "controller": true}}
			}
			found = append(found, pod)
		}
	}
}

// TestReview: the webhook makes of a pod what the command makes of its manifest, once.
func TestReview(t *testing.T) {
	reviewed := 0
	for _, a := range archives(t, "testdata/golden/*.txtar") {
		t.Run(filepath.Base(a.path), func(t *testing.T) {
			for _, pod := range pods(t, a.files["in"]) {
				o := options(t, a.files)
				manifest, notes, err := inject.Inject(asJSON(t, pod), o)
				if err != nil {
					t.Fatal(err)
				}
				var want map[string]any
				if err := json.Unmarshal(manifest, &want); err != nil {
					t.Fatal(err)
				}
				got, v, r := review(t, pod, o)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-inject +review):\n%s", diff)
				}
				if len(v.Notes) != len(notes) || len(r.Response.Warnings) != len(notes) {
					t.Errorf("notes %v, warnings %q, want what inject tells: %v", v.Notes, r.Response.Warnings, notes)
				}
				if labels, _ := pod["metadata"].(map[string]any)["labels"].(map[string]any); labels["wopproxy.dev/inject"] == "false" {
					if v.Outcome != inject.Unchanged {
						t.Errorf("outcome = %s of a pod that wants none", v.Outcome)
					}
					continue
				}
				reviewed++
				if v.Outcome != inject.Injected {
					t.Errorf("outcome = %s, want injected", v.Outcome)
				}
				if _, v, r := review(t, got, o); v.Outcome != inject.Unchanged || len(r.Response.Patch) > 0 {
					t.Errorf("reviewed again: %s, patch %s, want nothing", v.Outcome, r.Response.Patch)
				}
			}
		})
	}
	if reviewed < 5 {
		t.Errorf("%d pods reviewed, want all of the golden files", reviewed)
	}
}

// TestReviewAdded: a container that another webhook has added calls through the sidecar,
// too.
func TestReviewAdded(t *testing.T) {
	o := inject.Options{Image: "w:1", Settings: map[string]string{"port": "http"}}
	pod := pods(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec: {containers: [{name: agent, ports: [{name: http, containerPort: 8080}]}]}\n")[0]
	once, _, _ := review(t, pod, o)
	spec := once["spec"].(map[string]any)
	spec["containers"] = append(spec["containers"].([]any), map[string]any{"name": "added"})
	twice, v, _ := review(t, once, o)
	containers := twice["spec"].(map[string]any)["containers"].([]any)
	added := containers[1].(map[string]any)["env"]
	if v.Outcome != inject.Injected || cmp.Diff(containers[0].(map[string]any)["env"], added) != "" {
		t.Errorf("%s, the container that was added has %v, want the variables of the first", v.Outcome, added)
	}
	if n := len(twice["spec"].(map[string]any)["initContainers"].([]any)); n != 1 {
		t.Errorf("%d sidecars, want 1", n)
	}
}

// TestReviewOfInjected: a pod that was injected otherwise than the webhook would do it is
// left as it is.
func TestReviewOfInjected(t *testing.T) {
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec: {containers: [{name: agent, ports: [{name: http, containerPort: 8080}]}, {name: other}]}\n"
	for key, value := range map[string]string{"mode": "transparent", "containers": "agent"} {
		out, _, err := inject.Inject([]byte(manifest), inject.Options{Image: "mine:1", Settings: map[string]string{key: value}})
		if err != nil {
			t.Fatal(err)
		}
		if _, v, _ := review(t, pods(t, string(out))[0], inject.Options{Image: "w:1"}); v.Outcome != inject.Unchanged {
			t.Errorf("%s=%s: %s, want unchanged", key, value, v.Outcome)
		}
	}
}

// TestReviewRefused: a pod that can't have a sidecar is admitted without one, and says
// why.
func TestReviewRefused(t *testing.T) {
	for _, a := range archives(t, "testdata/refused/*.txtar") {
		name := filepath.Base(a.path)
		if slices.Contains([]string{"not_yaml.txtar", "anchor.txtar", "service_by_number.txtar", "service_headless.txtar", "service_protocol.txtar", "network_policy.txtar"}, name) {
			continue // which are matters of the manifest
		}
		t.Run(name, func(t *testing.T) {
			for _, pod := range pods(t, a.files["in"]) {
				got, v, r := review(t, pod, options(t, a.files))
				why, _ := got["metadata"].(map[string]any)["annotations"].(map[string]any)[inject.Refused].(string)
				if v.Outcome != inject.Refusal || why == "" || len(r.Response.Warnings) != 1 || len(r.Response.Warnings[0]) > 256 {
					t.Errorf("%s, %q, warnings %q; want the pod refused, and one warning", v.Outcome, why, r.Response.Warnings)
				}
				delete(got["metadata"].(map[string]any)["annotations"].(map[string]any), inject.Refused)
				if len(got["metadata"].(map[string]any)["annotations"].(map[string]any)) == 0 {
					delete(got["metadata"].(map[string]any), "annotations")
				}
				var want map[string]any
				if err := json.Unmarshal(asJSON(t, pod), &want); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("but for the reason, (-asked +admitted):\n%s", diff)
				}
			}
		})
	}
}

// TestReviewOfOther: what is no pod is allowed as it is, and what is no review is an
// error.
func TestReviewOfOther(t *testing.T) {
	for _, o := range []map[string]any{{}, {"apiVersion": "v1", "kind": "Service"}, {"apiVersion": "apps/v1", "kind": "Deployment", "spec": map[string]any{}}, {"apiVersion": "v1", "kind": "Pod"}} {
		if _, v, r := review(t, o, inject.Options{Image: "w:1"}); v.Outcome != inject.Unchanged || len(r.Response.Patch) > 0 {
			t.Errorf("%v: %s, patch %s; want it unchanged", o, v.Outcome, r.Response.Patch)
		}
	}
	for _, text := range []string{"", "{", "[]", "{}", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}`, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`} {
		if v, err := inject.Review([]byte(text), inject.Options{Image: "w:1"}); err == nil {
			t.Errorf("Review(%q) = %s, want an error", text, v.Answer)
		}
	}
}

// TestWorkloadName: all pods of a workload are one host, whoever made them.
func TestWorkloadName(t *testing.T) {
	for name, metadata := range map[string]map[string]any{
		"bare":    {"name": "bare"},
		"planner": {"generateName": "planner-5d4f-", "labels": map[string]any{"pod-template-hash": "5d4f"}, "ownerReferences": []any{map[string]any{"kind": "ReplicaSet", "name": "planner-5d4f", "controller": true}}},
		"links":   {"name": "links-0", "ownerReferences": []any{map[string]any{"kind": "StatefulSet", "name": "links", "controller": true}}},
		"nightly": {"name": "nightly-29012345-x", "ownerReferences": []any{map[string]any{"kind": "Job", "name": "nightly-29012345", "controller": true}}},
		"once":    {"generateName": "once-", "ownerReferences": []any{map[string]any{"kind": "Job", "name": "other", "controller": false}}},
	} {
		pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": map[string]any{"containers": []any{map[string]any{"name": "a"}}}}
		got, v, _ := review(t, pod, inject.Options{Image: "w:1", Settings: map[string]string{"port": "none"}})
		if want := "id: $(POD_NAMESPACE)/" + name + "\n"; v.Outcome != inject.Injected || !strings.Contains(string(asJSON(t, got)), strings.ReplaceAll(want, "\n", `\n`)) {
			t.Errorf("%v: %s, its sidecar has not %q", metadata, v.Outcome, want)
		}
	}
}
