package inject

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/config"
)

// Prefix is that of every label and annotation.
const Prefix = "wopproxy.dev/"

// Names of the label and of the annotation that are no settings.
const (
	// Label on a pod or its namespace asks for the sidecar with "true"; on a pod,
	// "false" refuses it.
	Label = Prefix + "inject"
	// Status is the annotation that says what was injected, and how to take it back.
	Status = Prefix + "status"
)

// Setting is one thing that a pod may say about its sidecar, as an annotation.
type Setting struct {
	Key     string // without the prefix
	Default string
	// Doc says what it does, in the words of the table in the documentation.
	Doc   string
	check func(value string) error
}

// Settings are all that there are, as the documentation lists them.
var Settings = []Setting{
	{"port", "", "where the host listens: a port's name or number, or `none` where nobody calls it. Default the only TCP port that the containers have; for pods of a Job without one, `none`", checkPort},
	{"mode", "explicit", "`transparent`: the kernel leads the calls of all containers, and those to the host's port, through the sidecar. The containers are told of no proxy, ports and Services stay as they are, and an init container takes the capability `NET_ADMIN`, which the Pod Security Standards `baseline` and `restricted` refuse", oneOf("explicit", "transparent")},
	{"exclude-cidrs", "", "networks that `transparent` leaves alone, separated by commas", checkCIDRs},
	{"exclude-ports", "53", "ports elsewhere that `transparent` leaves alone, separated by commas", checkPorts},
	{"app-port-env", "", "the variable from which the host takes its port. The host then listens on another one, and the sidecar on the host's: for Services that name it by number", match(`[A-Za-z_][A-Za-z0-9_]*`, "the name of a variable")},
	{"base-port", "18088", "the first of seven ports of the sidecar: ingress, egress, admin, health, the host's where `app-port-env` moves it, and the two to which `transparent` redirects", checkBase},
	{"host-id", "", "`host.id`. Default NAMESPACE/WORKLOAD", match(`[!-~]{1,255}`, "1 to 255 visible ASCII characters")},
	{"well-known-url", "", "`host.wellKnownUrl`. Default that of the Service beside the workload in the manifest, else `http://WORKLOAD.NAMESPACE.svc/.well-known/openwop`", nil},
	{"containers", "", "the containers that call through the sidecar, separated by commas. Default all", nil},
	{"carry", "off", "`node`, `python` or `auto`, which is both: have the containers hand on context by the carry shims. Sets `NODE_OPTIONS` and `PYTHONPATH`, in the place of what the image sets", oneOf("off", "node", "python", "auto")},
	{"java", "false", "`true`: tell Java of the proxy. Sets `JAVA_TOOL_OPTIONS`, in the place of what the image sets", oneOf("true", "false")},
	{"no-proxy", "", "further destinations that the containers call directly, separated by commas. Cluster API, cloud metadata and loopback are always called directly", nil},
	{"intercept", "", "`egress.intercept`, separated by commas. The containers get an authority of the pod's own to trust", nil},
	{"runs-start", "", "`runs.start`, separated by commas", nil},
	{"single-flight", "false", "`attribution.singleFlight`: `true` only where one pod, or sticky routing, makes a run's calls leave the pod that it came to", oneOf("true", "false")},
	{"otlp-endpoint", "", "`tracing.otlp.endpoint`", nil},
	{"bearer-secret", "", "a Secret whose key `token` is `ancestry.auth.bearer`", match(dnsName, "the name of a Secret")},
	{"evidence-secret", "", "a Secret whose keys are files of the sidecar alone, in `/run/wopproxy-evidence`: what `evidence` signs with", match(dnsName, "the name of a Secret")},
	{"config-map", "", "a ConfigMap whose `wopproxy.yaml` says the rest, and is read again when it changes. What is set here, and the addresses, outrank it", match(dnsName, "the name of a ConfigMap")},
	{"store", "pod", "where links are kept: `pod`, on the node and as long as the pod; `memory`; or `volume/NAME`, a volume of the pod or a claim template of its StatefulSet, which the user 65532 may write to (with `transparent` 61337, in the group 65532)", match(`pod|memory|volume/`+dnsName, "pod, memory or volume/NAME")},
	{"drain", "5s", "how long the host goes on serving when the pod is deleted, while endpoints lag: a preStop sleep, unless it has a preStop hook. In the first half of it callers leave the connections that they keep", checkDrain},
	{"cpu-request", "20m", "the sidecar's", quantity},
	{"memory-request", "64Mi", "the sidecar's", quantity},
	{"cpu-limit", "", "the sidecar's. Default none", quantity},
	{"memory-limit", "512Mi", "the sidecar's", quantity},
	{"image", "", "the sidecar's image. Default that of the program that injects", match(`[^\s]+`, "an image")},
	{"image-pull-policy", "", "its pull policy. Default the cluster's", oneOf("", "Always", "IfNotPresent", "Never")},
}

const dnsName = `[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?`

// none are the settings that have a default, and mean nothing at all if they are empty. An
// empty value of another leaves the default.
var none = []string{"exclude-ports", "cpu-request", "memory-request", "memory-limit"}

// says reports whether the value of a setting says anything.
func (s Setting) says(value string) bool {
	return strings.TrimSpace(value) != "" || s.Default == "" || slices.Contains(none, s.Key)
}

// settings are the values for one pod, by key.
type settings map[string]string

// resolve returns what the annotations of a pod say over what is given for all.
func resolve(given map[string]string, annotations object) (settings, error) {
	s := settings{}
	var errs []error
	for _, known := range Settings {
		s[known.Key] = known.Default
		if v, ok := given[known.Key]; ok && known.says(v) {
			s[known.Key] = v
		}
		v, ok := annotations[Prefix+known.Key]
		if !ok {
			continue
		}
		text, ok := v.(string)
		if !ok {
			errs = append(errs, fmt.Errorf("the annotation %s%s is no text, put it in quotes", Prefix, known.Key))
			continue
		}
		if !known.says(text) {
			continue
		}
		s[known.Key] = strings.TrimSpace(text)
		if known.check == nil || s[known.Key] == "" {
			continue
		}
		if err := known.check(s[known.Key]); err != nil {
			errs = append(errs, fmt.Errorf("the annotation %s%s is %q: %w", Prefix, known.Key, text, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(key, Prefix)
		if key == Label {
			errs = append(errs, fmt.Errorf("%s is a label, move it from annotations to labels", Label))
		} else if ours && key != Status && key != Refused && !known(name) {
			errs = append(errs, fmt.Errorf("there is no annotation %s, write one of %s", key, strings.Join(keys(), ", ")))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, s.fits("cpu"), s.fits("memory"))
	}
	return s, errors.Join(errs...)
}

// fits refuses to ask for more than the limit, which Kubernetes would.
func (s settings) fits(of string) error {
	request, limit := s[of+"-request"], s[of+"-limit"]
	if request == "" || limit == "" || amount(request) <= amount(limit) {
		return nil
	}
	return fmt.Errorf("%s%s-request is %s, above %s%s-limit, %s: lower it, or raise the limit", Prefix, of, request, Prefix, of, limit)
}

// amount is what a quantity says, 0 for one that is none.
func amount(text string) float64 {
	number := strings.TrimRight(text, "mkMGTi")
	v, _ := strconv.ParseFloat(number, 64)
	powers := map[string]float64{"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
	return v * powers[text[len(number):]]
}

func known(key string) bool { return slices.Contains(keys(), key) }

func keys() (keys []string) {
	for _, s := range Settings {
		keys = append(keys, s.Key)
	}
	return keys
}

// Check says what is wrong with settings for all pods.
func Check(given map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(given)) {
		i := slices.IndexFunc(Settings, func(s Setting) bool { return s.Key == key })
		if i < 0 {
			errs = append(errs, fmt.Errorf("there is no setting %s, write one of %s", key, strings.Join(keys(), ", ")))
		} else if s := Settings[i]; s.check != nil && given[key] != "" {
			if err := s.check(given[key]); err != nil {
				errs = append(errs, fmt.Errorf("the setting %s is %q: %w", key, given[key], err))
			}
		}
	}
	return errors.Join(errs...)
}

// list returns the values of a setting that has several.
func (s settings) list(key string) (values []any) {
	for v := range strings.SplitSeq(s[key], ",") {
		if v = strings.TrimSpace(v); v != "" {
			values = append(values, v)
		}
	}
	return values
}

func match(pattern, want string) func(string) error {
	// Compiled when it is asked for: together they take 700 KB, and most runs of the
	// program inject nothing.
	re := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^(" + pattern + ")$") })
	return func(v string) error {
		if !re().MatchString(v) {
			return fmt.Errorf("want %s", want)
		}
		return nil
	}
}

func oneOf(values ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("want one of %s", strings.Join(values, ", "))
		}
		return nil
	}
}

var quantity = match(`[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?`, "a quantity, write for example 100m or 64Mi")

func checkPort(v string) error {
	if v == "none" {
		return nil
	}
	if n, err := strconv.Atoi(v); err == nil && (n < 1 || n > 65535) {
		return errors.New("want the name of a port, 1 to 65535, or none")
	}
	return nil
}

func checkPorts(v string) error {
	for port := range strings.SplitSeq(v, ",") {
		if n, err := strconv.Atoi(strings.TrimSpace(port)); err != nil || n < 1 || n > 65535 {
			return errors.New("want ports, 1 to 65535, separated by commas")
		}
	}
	return nil
}

func checkCIDRs(v string) error {
	for network := range strings.SplitSeq(v, ",") {
		if err := new(config.CIDR).UnmarshalText([]byte(strings.TrimSpace(network))); err != nil {
			return err
		}
	}
	return nil
}

func checkBase(v string) error {
	if n, err := strconv.Atoi(v); err != nil || n < 1024 || n > 65529 {
		return errors.New("want 1024 to 65529")
	}
	return nil
}

func checkDrain(v string) error {
	if d, err := time.ParseDuration(v); err != nil || d < 0 || d > 10*time.Minute || d%time.Second != 0 {
		return errors.New("want whole seconds, write for example 5s, at most 10m; 0s for none")
	}
	return nil
}
