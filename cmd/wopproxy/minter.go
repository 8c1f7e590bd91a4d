package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/config"
	"github.com/wopproxy/wopproxy/evidence"
)

// newMinter returns what signs the evidence that c asks for; nil: none. A key that
// is lost or malformed is a mistake of the configuration: receipts would be missing
// without anybody noticing.
func (s *sidecar) newMinter(c *config.Config, sec *secrets) (*evidence.Minter, error) {
	if c.Evidence.Issuer == "" {
		return nil, nil
	}
	store := evidenceStore(s.store)
	if store == nil {
		s.log.Warn("no evidence is made: there is no store for it")
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
	for _, k := range keys {
		if len(k.Private) > 0 && bytes.Equal(k.Private.Seed(), idKey) {
			return nil, errors.New("evidence.idKey: it is the secret of a signing key: make another with openssl rand -hex 32")
		}
	}
	return evidence.New(evidence.Options{
		Issuer: c.Evidence.Issuer, Host: c.Host.ID, Keys: keys, IDKey: idKey, Privacy: evidence.Privacy(c.Evidence.Privacy),
		Store: store, Known: known, Queue: c.Evidence.Queue, Live: s.anyLive,
		Registerer: s.metrics, Logger: s.log,
	})
}

// anyLive says whether one of some runs goes on, by either of its ids. Until there is
// a proxy, none does.
func (s *sidecar) anyLive(runs map[ancestry.RunID]bool) bool {
	return s.proxy != nil && slices.ContainsFunc(s.proxy.Live(), func(r ancestry.LiveRun) bool { return runs[r.Run] || runs[r.Alias] })
}

// signed answers for a run with what was signed of it; nil: nothing is.
func (s *sidecar) signed() func(context.Context, ancestry.EvidenceQuery) (any, error) {
	if s.minter == nil {
		return nil
	}
	return func(ctx context.Context, q ancestry.EvidenceQuery) (any, error) {
		workflow, err := s.minter.WorkflowOf(ctx, q.Runs...)
		if err != nil {
			return nil, err
		}
		if q.Proof != "" {
			return s.minter.Extract(ctx, workflow, q.Proof)
		}
		return s.minter.Bundle(ctx, workflow, q.After, q.Limit)
	}
}

// published has next stand behind what an issuer publishes.
func (s *sidecar) published(c *config.Config, next http.Handler) (http.Handler, error) {
	if s.minter == nil {
		return next, nil
	}
	var revoked []peac.RevokedKey
	for _, k := range c.Evidence.Revoked {
		revoked = append(revoked, peac.RevokedKey{KeyID: k.KeyID, RevokedAt: peac.FormatTime(k.At.Time), Reason: k.Reason})
	}
	return evidence.Publish(next, c.Evidence.Issuer, s.minter.Ring(), revoked, time.Now)
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
