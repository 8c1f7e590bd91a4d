package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/evidence"
)

// evidenceOptions is who signs evidence as c asks for it, without where that is kept;
// nil: nobody does. A key that is lost, malformed or not fit to sign is a mistake of the
// configuration: receipts would be missing, or not to be verified, without anybody
// noticing.
func evidenceOptions(c *config.Config, sec *secrets) (*evidence.Options, error) {
	if c.Evidence.Issuer == "" {
		return nil, nil
	}
	keys, keyErr := evidenceKeys(c.Evidence)
	idKey, err := hex.DecodeString(sec.idKey)
	if err != nil || len(idKey) != 32 {
		err = errors.New("evidence.idKey: not 64 hex digits: make it with openssl rand -hex 32")
	}
	known, knownErr := knownKeys(c.Evidence.Known)
	if err := errors.Join(keyErr, err, knownErr); err != nil {
		return nil, err
	}
	o := &evidence.Options{
		Issuer: c.Evidence.Issuer, Host: c.Host.ID, Keys: keys, IDKey: idKey,
		Privacy: evidence.Privacy(c.Evidence.Privacy), Digests: c.Evidence.Digests, Known: known, Queue: c.Evidence.Queue,
	}
	for _, k := range c.Evidence.Revoked {
		o.Revoked = append(o.Revoked, peac.RevokedKey{KeyID: k.KeyID, RevokedAt: peac.FormatTime(k.At.Time), Reason: k.Reason})
	}
	return o, o.Check()
}

// newMinter returns what signs evidence, as o has it; nil: nothing does.
func (s *sidecar) newMinter(ctx context.Context, o *evidence.Options) (*evidence.Minter, error) {
	if o == nil {
		return nil, nil
	}
	store := evidenceStore(s.store)
	if store == nil {
		s.log.WarnContext(ctx, "no evidence is made: there is no store for it")
		return nil, nil
	}
	// The store is to know before anything begins that receipts will come: a process that
	// is killed before it has stored one leaves no other trace of what it had begun.
	if err := store.Add(ctx, nil, nil); err != nil {
		s.log.WarnContext(ctx, "the store takes no receipts yet: until it does, nobody will know of those that a kill takes", "err", err)
	}
	o.Store, o.Live, o.Registerer, o.Logger = store, s.anyLive, s.metrics, s.log
	return evidence.New(*o)
}

// anyLive says whether a run of a workflow goes on, or one of some runs, by either of
// its ids. Until there is a proxy, none does.
func (s *sidecar) anyLive(workflow string, runs map[ancestry.RunID]bool) bool {
	return s.proxy != nil && slices.ContainsFunc(s.proxy.Live(), func(r ancestry.LiveRun) bool {
		return r.Workflow == workflow || runs[r.Run] || runs[r.Alias]
	})
}

// signed answers for a run with what was signed of it; nil: nothing is.
func (s *sidecar) signed() func(context.Context, ancestry.EvidenceQuery) (any, error) {
	if s.minter == nil {
		return nil
	}
	return func(ctx context.Context, q ancestry.EvidenceQuery) (any, error) { return signedOf(ctx, s.minter, q) }
}

func signedOf(ctx context.Context, m *evidence.Minter, q ancestry.EvidenceQuery) (peac.Bundle, error) {
	set, err := m.SetOf(ctx, evidence.OriginOf(q.Audience), q.Runs...)
	if err != nil {
		return peac.Bundle{}, err
	}
	if q.Proof != "" {
		return m.Extract(ctx, set, q.Proof)
	}
	return m.Bundle(ctx, set, q.After, q.Limit)
}

// storedEvidence answers as a wopproxy with the configuration c would that has stopped.
func storedEvidence(ctx context.Context, c *config.Config, q ancestry.EvidenceQuery) (b peac.Bundle, err error) {
	sec, err := readSecrets(c, os.LookupEnv)
	if err != nil {
		return b, err
	}
	o, err := evidenceOptions(c, sec)
	if err != nil {
		return b, err
	}
	if o == nil {
		return b, errors.New("nothing is signed with this configuration: evidence.issuer is not in it")
	}
	dir := c.Ancestry.Store.Bolt.Dir
	if _, err := os.Stat(dir); err != nil { // else it would be made
		return b, fmt.Errorf("ancestry.store.bolt.dir: %w", err)
	}
	s, err := openBolt(c, dir, -1, slog.New(slog.DiscardHandler))
	if errors.Is(err, boltstore.ErrInUse) {
		return b, fmt.Errorf("%s is in use: ask the wopproxy that has it, with -admin", dir)
	}
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	l, err := s.Lookup(ctx, q.Runs[0])
	if err != nil && !errors.Is(err, ancestry.ErrNotFound) {
		return b, err
	}
	q.Runs = append(q.Runs, l.Run, l.Alias)
	o.Store = evidenceStore(s)
	m, err := evidence.New(*o)
	if err != nil {
		return b, err
	}
	if b, err = signedOf(ctx, m, q); errors.Is(err, ancestry.ErrNotFound) {
		err = fmt.Errorf("%s: no such receipt of such a run in %s", q.Runs[0], dir)
	}
	return b, err
}

// published has next stand behind what an issuer publishes.
func (s *sidecar) published(next http.Handler) http.Handler {
	if s.minter == nil {
		return next
	}
	return s.minter.Publish(next)
}

// evidenceStore is the store as one for receipts; nil: it keeps none.
func evidenceStore(s ancestry.Store) evidence.Store {
	store, _ := opened(s).(evidence.Store)
	return store
}

// evidenceKeys reads the keys, in the order in which they sign: those that have
// signed, the key itself, and those that will.
func evidenceKeys(e config.Evidence) ([]evidence.Key, error) {
	var errs []error
	read := func(key, file, id string) evidence.Key {
		text, err := os.ReadFile(file)
		var k evidence.Key
		if err == nil {
			k, err = evidence.ParseKey(text, id)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: put it back, or, if it is lost, make another with openssl genpkey -algorithm ed25519, under another keyId", err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", key, file, err))
		}
		return k
	}
	own := read("evidence.key", e.Key.File, e.KeyID)
	if own.Public != nil && own.Private == nil {
		errs = append(errs, fmt.Errorf("evidence.key: %s holds a public key, which can't sign: write the file of the private one", e.Key.File))
	}
	own.Sign = time.Unix(0, 0) // after those that have signed
	past, future := []evidence.Key{}, []evidence.Key{}
	for i, c := range e.Keys {
		name := fmt.Sprintf("evidence.keys[%d]", i)
		k := read(name, c.File, c.KeyID)
		k.Sign, k.Retire = c.Sign.Time, c.Retire.Time
		switch {
		case c.Sign.IsZero():
			past = append(past, k)
		case k.Public != nil && k.Private == nil:
			errs = append(errs, fmt.Errorf("%s: %s holds a public key, which can't sign from %v on: write the file of the private one", name, c.File, c.Sign))
		default:
			future = append(future, k)
		}
	}
	return append(append(past, own), future...), errors.Join(errs...)
}

// knownKeys reads the keys of other issuers.
func knownKeys(issuers []config.KnownIssuer) (map[string]peac.JWKS, error) {
	known := map[string]peac.JWKS{}
	var errs []error
	for i, k := range issuers {
		text, err := os.ReadFile(k.File)
		if err == nil {
			known[k.Issuer], err = peac.ParseJWKS(text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("evidence.known[%d]: %s: %w", i, k.File, err))
		}
	}
	return known, errors.Join(errs...)
}
