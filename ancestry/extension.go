package ancestry

import (
	"encoding/json"
	"regexp"
	"slices"
	"sync"
)

// ExtensionKey names the part of a discovery document's extensions that tells of
// what wopproxy adds to a host, where the host does not claim it by the protocol.
const ExtensionKey = "wopproxy.causation"

// Where ancestry is asked for, as templates with a variable for the run.
const (
	runIDVariable = "{runId}"
	protocolPath  = pathPrefix + runIDVariable + pathSuffix
	mountedPath   = mount + protocolPath
)

const maxTemplates = 4 // read of one extension

// extension is what stands under ExtensionKey: nothing that only the host can know.
type extension struct {
	Ancestry []string `json:"ancestry"` // templates, below what stands before /.well-known/openwop
	HostID   string   `json:"hostId"`
}

// Extension renders what goes under ExtensionKey for a host.
func Extension(hostID string) string {
	b, _ := json.Marshal(extension{HostID: hostID, Ancestry: []string{"/v1" + mountedPath, mountedPath}}) // always marshals
	return string(b)
}

// template is a path below a host's base: nothing in it can lead elsewhere.
// It is compiled when it is asked for: it takes 400 KB, and serving needs it not.
var template = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(/[A-Za-z0-9_-]{1,64}){1,8}/\{runId\}(/[A-Za-z0-9_-]{1,64}){1,8}$`)
})

// parseExtension returns the templates in a discovery document, as far as they are
// paths that can be asked on.
func parseExtension(doc []byte) []string {
	var told struct {
		Extensions map[string]json.RawMessage `json:"extensions"`
	}
	var e extension
	if json.Unmarshal(doc, &told) != nil || json.Unmarshal(told.Extensions[ExtensionKey], &e) != nil {
		return nil
	}
	paths := slices.DeleteFunc(e.Ancestry, func(t string) bool { return !template().MatchString(t) })
	return paths[:min(len(paths), maxTemplates)]
}
