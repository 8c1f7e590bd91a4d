package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/wopproxy/wopproxy/carry"
)

// Refused is the annotation that says why a pod which asked for a sidecar was admitted
// without one.
const Refused = Prefix + "refused"

// Outcome is what became of a pod that was to be admitted.
type Outcome string

// All outcomes. A pod is admitted whatever they are.
const (
	Injected  Outcome = "injected"
	Unchanged Outcome = "unchanged" // it has a sidecar, or wants none
	Refusal   Outcome = "refused"   // it can't have one
)

// admissionReview is as much of admission.k8s.io/v1 as is needed.
type admissionReview struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Request    *admissionRequest  `json:"request,omitempty"`
	Response   *admissionResponse `json:"response,omitempty"`
}

type admissionRequest struct {
	UID       string          `json:"uid"`
	Namespace string          `json:"namespace"`
	Object    json.RawMessage `json:"object"`
}

type admissionResponse struct {
	UID       string   `json:"uid"`
	Allowed   bool     `json:"allowed"`
	PatchType string   `json:"patchType,omitempty"`
	Patch     []byte   `json:"patch,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

// Verdict is the answer to an AdmissionReview.
type Verdict struct {
	Answer  []byte // the AdmissionReview to send back
	Outcome Outcome
	Notes   []Note // what was told of the pod, for the log
}

// Review answers an AdmissionReview of admission.k8s.io/v1 about a pod, with the edits
// that [Inject] would make to it. The pod is always admitted: one that can't be
// injected bears the annotation [Refused]. The error is for what is no such review.
func Review(review []byte, o Options) (*Verdict, error) {
	var in admissionReview
	if err := json.Unmarshal(review, &in); err != nil {
		return nil, fmt.Errorf("not an AdmissionReview: %w", err)
	}
	if in.APIVersion != "admission.k8s.io/v1" || in.Kind != "AdmissionReview" || in.Request == nil || in.Request.UID == "" {
		return nil, errors.New("not an AdmissionReview of admission.k8s.io/v1 with a request")
	}
	out := &admissionResponse{UID: in.Request.UID, Allowed: true}
	v := &Verdict{Outcome: Unchanged}
	if pod := decodePod(in.Request); pod != nil {
		v.admit(pod, o, out)
	}
	var err error
	v.Answer, err = json.Marshal(admissionReview{APIVersion: in.APIVersion, Kind: in.Kind, Response: out})
	return v, err
}

// decodePod returns the pod of a request, nil for another object.
func decodePod(r *admissionRequest) *workload {
	dec := json.NewDecoder(bytes.NewReader(r.Object))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil
	}
	o, _ := whole(v).(object)
	w := workloadOf(o)
	if w == nil || w.kind != "Pod" {
		return nil
	}
	w.namespace = cmp.Or(w.namespace, r.Namespace)
	return w
}

// admit decides about a pod.
func (v *Verdict) admit(w *workload, o Options, out *admissionResponse) {
	have := clone(w.object)
	if w.complete(o) {
		return
	}
	if err := w.inject(o, nil); err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		w.notes = append(w.notes, "no sidecar: "+text)
		w.object = clone(have).(object)
		put(w.object, text, false, "", path{"metadata", "annotations", Refused})
		v.Outcome = Refusal
	} else if !reflect.DeepEqual(have, any(w.object)) {
		v.Outcome = Injected
	}
	if ops := diff(have, w.object, ""); len(ops) > 0 {
		out.PatchType = "JSONPatch"
		out.Patch, _ = json.Marshal(ops) // strings, numbers, lists and mappings of them
	}
	for _, text := range w.notes {
		v.Notes = append(v.Notes, Note{w.title(), text})
		out.Warnings = append(out.Warnings, warning("wopproxy: "+text))
	}
}

// complete reports whether a pod has its sidecar already and nothing has been added
// since that would call past it, as other webhooks may do.
func (w *workload) complete(o Options) bool {
	s, err := statusOf(w.pod)
	if err != nil || s == nil {
		return false
	}
	annotations, _ := at(w.pod, "metadata", "annotations").(object)
	settings, err := resolve(o.Settings, annotations)
	if err != nil {
		return false
	}
	p := &plan{editor: editor{pod: w.pod}, s: settings}
	if at(w.pod, "spec", "initContainers", sidecarName) == nil {
		return false
	}
	if s.Mode == "transparent" {
		return at(w.pod, "spec", "initContainers", redirector) != nil // the kernel leads all containers
	}
	if s.Containers != "" { // who injected may have had other settings
		settings["containers"] = s.Containers
	}
	return p.chooseHosts() == nil && !slices.ContainsFunc(p.hosts, func(name string) bool {
		return at(w.pod, "spec", "containers", name, "env", carry.EnvEgress) == nil
	})
}

// warning cuts a text to what API servers pass on of a warning.
func warning(text string) string {
	const most = 256
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// operation is one of a JSON Patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// diff returns what makes want of have, which stand at a JSON pointer. A list that
// has become longer or shorter is replaced as a whole.
func diff(have, want any, at string) (ops []operation) {
	if reflect.DeepEqual(have, want) {
		return nil
	}
	switch want := want.(type) {
	case object:
		have, ok := have.(object)
		if !ok {
			break
		}
		for _, key := range slices.Sorted(maps.Keys(have)) {
			if _, stays := want[key]; !stays {
				ops = append(ops, operation{Op: "remove", Path: at + "/" + path{key}.String()})
			}
		}
		for _, key := range slices.Sorted(maps.Keys(want)) {
			below := at + "/" + path{key}.String()
			if was, ok := have[key]; ok {
				ops = append(ops, diff(was, want[key], below)...)
			} else {
				ops = append(ops, operation{"add", below, want[key]})
			}
		}
		return ops
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			break
		}
		for i := range want {
			ops = append(ops, diff(have[i], want[i], at+"/"+strconv.Itoa(i))...)
		}
		return ops
	}
	return []operation{{"replace", at, want}}
}
