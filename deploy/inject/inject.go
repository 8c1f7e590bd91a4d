// Package inject puts a wopproxy beside the host in the pods of a Kubernetes
// manifest: manifest in, manifest out. It reads no cluster and no file.
//
// What it promises:
//
//   - Only the text that has to change changes. Comments, order and layout of the
//     rest stay, and documents without pods pass byte for byte.
//   - What was injected can be taken back: [Uninject] returns what [Inject] was
//     given, as far as the text allows byte for byte, and keeps what others have
//     added since. Injecting twice is injecting once.
//   - Services need no change: the port that they name moves to the sidecar.
//   - What can't be done safely is refused, with the object and the remedy.
//
// The sidecar is a native one, an init container that is restarted, and keeps to the
// Pod Security Standard "restricted"; with the mode "transparent" another one, before
// it, sets rules for the kernel and takes the capability NET_ADMIN. Moving a port takes
// Kubernetes 1.33: before, Services find none of an init container by its name.
package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Options are the same for all pods of a manifest.
type Options struct {
	// Image is the sidecar's, for pods that name none. Required.
	Image string
	// Settings are by key, see [Settings], for pods that say nothing else.
	Settings map[string]string
	// Config is configuration, a part of wopproxy.yaml, for pods without a
	// ConfigMap of their own. What is generated outranks it. Default none.
	Config []byte
}

// Check says what is wrong with options, whatever the pod.
func (o Options) Check() error {
	if err := Check(o.Settings); err != nil {
		return err
	}
	w := workloadOf(object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "any"}, "spec": object{"containers": []any{object{"name": "any"}}}})
	s, err := resolve(o.Settings, nil)
	if err != nil {
		return err
	}
	p := &plan{editor: editor{pod: w.pod}, w: w, o: o, s: s}
	if err := p.choosePorts(); err != nil {
		return err
	}
	_, _, err = p.config()
	return err
}

// Note is something to tell about an object.
type Note struct {
	Object string // kind and name
	Text   string
}

func (n Note) String() string { return n.Object + ": " + n.Text }

// Inject returns the manifest with the sidecar in each pod that does not refuse it.
// The manifest may be YAML, with any number of documents, or JSON, and hold Lists.
// The error names all objects that can't have it, and then nothing is returned.
func Inject(manifest []byte, o Options) ([]byte, []Note, error) {
	if err := Check(o.Settings); err != nil {
		return nil, nil, err
	}
	// What was injected before may not look like what is now: its text goes first.
	manifest, _, err := Uninject(manifest)
	if err != nil {
		return nil, nil, err
	}
	return edit(manifest, func(w *workload, beside []object) error { return w.inject(o, beside) })
}

// Uninject returns the manifest without what [Inject] has put in.
func Uninject(manifest []byte) ([]byte, []Note, error) {
	return edit(manifest, func(w *workload, _ []object) error { return w.uninject() })
}

// edit has change edit each workload of the manifest. It is told of all Services and
// NetworkPolicies.
func edit(manifest []byte, change func(w *workload, beside []object) error) ([]byte, []Note, error) {
	// Whole lines are easier to edit.
	missing := ""
	if len(manifest) > 0 && !bytes.HasSuffix(manifest, []byte("\n")) {
		missing = lineBreak(manifest)
		manifest = append(slices.Clone(manifest), missing...)
	}
	documents, err := split(manifest)
	if err != nil {
		return nil, nil, err
	}
	var beside []object
	for _, d := range documents {
		for _, o := range d.objects() {
			if o["kind"] == "Service" || o["kind"] == "NetworkPolicy" {
				beside = append(beside, o)
			}
		}
	}
	var out []byte
	var notes []Note
	var errs []error
	for _, d := range documents {
		want := clone(d.says)
		for _, o := range (&document{says: want}).objects() {
			w := workloadOf(o)
			if w == nil {
				continue
			}
			if err := change(w, beside); err != nil {
				errs = append(errs, fmt.Errorf("%s (document %d): %s", w.title(), d.number, strings.ReplaceAll(err.Error(), "\n", "\n  ")))
			}
			for _, text := range w.notes {
				notes = append(notes, Note{w.title(), text})
			}
		}
		text := d.text
		if len(errs) == 0 && d.root != nil {
			if text, err = splice(d.text, d.root, d.says, want); err != nil {
				errs = append(errs, fmt.Errorf("document %d of %d: %w", d.number, len(documents), err))
			}
		}
		out = append(out, text...)
	}
	if len(errs) > 0 {
		return nil, notes, errors.Join(errs...)
	}
	return bytes.TrimSuffix(out, []byte(missing)), notes, nil
}

// lineBreak is how the lines of a text end.
func lineBreak(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// document is one of a manifest.
type document struct {
	number int
	text   []byte
	root   *yaml.Node // nil: it is empty
	says   any
}

// split returns the documents of a manifest, whose texts make it up.
func split(manifest []byte) (documents []*document, err error) {
	var texts [][]byte
	begin := 0
	for at := 0; at < len(manifest); {
		next := at + cmp.Or(bytes.IndexByte(manifest[at:], '\n')+1, len(manifest)-at)
		if line := manifest[at:next]; at > begin && bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || bytes.ContainsAny(line[3:4], " \t\r\n")) {
			texts = append(texts, manifest[begin:at])
			begin = at
		}
		at = next
	}
	texts = append(texts, manifest[begin:])
	line := 1
	var errs []error
	for i, text := range texts {
		d := &document{number: i + 1, text: text}
		if err := d.parse(); err != nil {
			errs = append(errs, fmt.Errorf("document %d of %d is not YAML: %s", i+1, len(texts), inLine(err, line)))
		}
		documents = append(documents, d)
		line += bytes.Count(text, []byte("\n"))
	}
	return documents, errors.Join(errs...)
}

// inLine returns what the yaml package says of a text that begins in a line, with the
// line in the whole manifest.
func inLine(err error, begin int) string {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if _, scanErr := fmt.Sscanf(what, "line %d:", &line); scanErr != nil {
		return what
	}
	_, what, _ = strings.Cut(what, ": ")
	return fmt.Sprintf("line %d: %s", begin+line-1, what)
}

func (d *document) parse() error {
	dec := yaml.NewDecoder(bytes.NewReader(d.text))
	var n yaml.Node
	if err := dec.Decode(&n); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}
	if len(n.Content) == 0 {
		return nil
	}
	d.root = n.Content[0]
	return d.root.Decode(&d.says)
}

// objects returns the objects of a document, those of a List each.
func (d *document) objects() []object {
	o, _ := d.says.(object)
	if o == nil {
		return nil
	}
	if kind, _ := o["kind"].(string); strings.HasSuffix(kind, "List") {
		var all []object
		for _, item := range objects(o, "items") {
			all = append(all, (&document{says: item}).objects()...)
		}
		return all
	}
	return []object{o}
}

// templates is where the objects that make pods have them: by kind, and by the group
// of the API.
var templates = map[string]path{
	"/Pod": nil, "/ReplicationController": {"spec", "template"}, "/PodTemplate": {"template"},
	"apps/Deployment": {"spec", "template"}, "apps/StatefulSet": {"spec", "template"},
	"apps/DaemonSet": {"spec", "template"}, "apps/ReplicaSet": {"spec", "template"},
	"batch/Job": {"spec", "template"}, "batch/CronJob": {"spec", "jobTemplate", "spec", "template"},
}

// workload is an object that makes pods, or is one.
type workload struct {
	object    object
	pod       object // its metadata and spec
	kind      string
	name      string
	namespace string // empty: not said
	notes     []string
}

func workloadOf(o object) *workload {
	group, _, _ := strings.Cut(text(o, "apiVersion"), "/")
	if !strings.Contains(text(o, "apiVersion"), "/") {
		group = ""
	}
	w := &workload{object: o, kind: text(o, "kind"), name: text(o, "metadata", "name"), namespace: text(o, "metadata", "namespace")}
	where, ok := templates[group+"/"+w.kind]
	if !ok {
		return nil
	}
	w.pod, _ = at(o, where...).(object)
	if _, ok := at(w.pod, "spec").(object); !ok {
		return nil // the API server says what is wrong with it
	}
	return w
}

func (w *workload) title() string {
	name := cmp.Or(w.name, text(w.object, "metadata", "generateName"))
	if w.namespace != "" {
		name = w.namespace + "/" + name
	}
	return w.kind + " " + name
}

func (w *workload) note(format string, args ...any) {
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

// status is what the annotation says.
type status struct {
	Version    int    `json:"version"`
	Mode       string `json:"mode"`
	Containers string `json:"containers,omitempty"` // the setting: which call through the sidecar, "" for all
	Undo       undo   `json:"undo"`
}

// statusOf returns what was injected into a pod, nil for nothing.
func statusOf(pod object) (*status, error) {
	given := at(pod, "metadata", "annotations", Status)
	if given == nil {
		return nil, nil
	}
	text, _ := given.(string)
	var s status
	if err := json.Unmarshal([]byte(text), &s); err != nil || s.Version != 1 {
		return nil, fmt.Errorf("the annotation %s is not one that this version has written: take out by hand what was injected, or start from the manifest without it", Status)
	}
	return &s, nil
}

// uninject takes back what was injected.
func (w *workload) uninject() error {
	s, err := statusOf(w.pod)
	if err != nil || s == nil {
		return err
	}
	s.Undo.undone(w.pod)
	return nil
}

// inject puts the sidecar in, anew where there is one.
func (w *workload) inject(o Options, beside []object) error {
	if text(w.pod, "metadata", "labels", Label) == "false" {
		w.note("not injected, it has the label %s: \"false\"", Label)
		return w.uninject()
	}
	if err := w.uninject(); err != nil {
		return err
	}
	p, err := w.plan(o, beside)
	if err != nil {
		return err
	}
	return p.apply()
}

// labels are those of the pods.
func (w *workload) labels() object {
	l, _ := at(w.pod, "metadata", "labels").(object)
	return l
}

// services returns the Services beside the workload that select its pods.
func (w *workload) services(beside []object) (found []object) {
	for _, s := range w.sharing(beside, "Service") {
		selector, _ := at(s, "spec", "selector").(object)
		if len(selector) > 0 && w.has(selector) {
			found = append(found, s)
		}
	}
	return found
}

// policies returns the NetworkPolicies beside the workload that select its pods.
func (w *workload) policies(beside []object) (found []object) {
	for _, policy := range w.sharing(beside, "NetworkPolicy") {
		selector, _ := at(policy, "spec", "podSelector").(object)
		matchLabels, _ := selector["matchLabels"].(object)
		if w.has(matchLabels) && !slices.ContainsFunc(objects(selector, "matchExpressions"), func(e object) bool { return !w.meets(e) }) {
			found = append(found, policy)
		}
	}
	return found
}

// sharing returns the objects of a kind that are in the namespace of the workload. One
// that isn't said may be any.
func (w *workload) sharing(beside []object, kind string) (found []object) {
	for _, o := range beside {
		namespace := text(o, "metadata", "namespace")
		if o["kind"] == kind && (namespace == w.namespace || namespace == "" || w.namespace == "") {
			found = append(found, o)
		}
	}
	return found
}

// has reports whether the pods have all of these labels.
func (w *workload) has(selector object) bool {
	labels := w.labels()
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// meets reports whether the pods meet an expression of a selector.
func (w *workload) meets(expression object) bool {
	value, ok := w.labels()[text(expression, "key")]
	values, _ := expression["values"].([]any)
	switch text(expression, "operator") {
	case "In":
		return ok && slices.Contains(values, value)
	case "NotIn":
		return !ok || !slices.Contains(values, value)
	case "Exists":
		return ok
	}
	return !ok // DoesNotExist
}
