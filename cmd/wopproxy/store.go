package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/config"
)

// openStore opens a store as c has it.
type openStore func(c *config.Config, log *slog.Logger) (ancestry.Store, error)

// theStore opens the one in the directory that c names.
func theStore(c *config.Config, log *slog.Logger) (ancestry.Store, error) {
	return openBolt(c, c.Ancestry.Store.Bolt.Dir, 0, log)
}

// settler is a store that knows whether the runs it tells of are over.
type settler interface {
	Settled() bool
	Settle() error
}

// forOwnHost opens a store for a host that ends with us: none of its runs goes on
// when we start again.
func forOwnHost(open openStore) openStore {
	return func(c *config.Config, log *slog.Logger) (ancestry.Store, error) {
		s, err := open(c, log)
		if err != nil {
			return nil, err
		}
		return ownHosts{s}, nil
	}
}

// ownHosts is a store that is no settler.
type ownHosts struct{ ancestry.Store }

// opened is the store itself, without what stands before it here.
func opened(s ancestry.Store) ancestry.Store {
	if own, ok := s.(ownHosts); ok {
		return own.Store
	}
	return s
}

// countFullJournal exposes how often links had to wait for the journal of the store,
// if it has one.
func (s *sidecar) countFullJournal() {
	journal, ok := opened(s.store).(interface{ Full() uint64 })
	if !ok {
		return
	}
	s.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "wopproxy_store_journal_full_total", Help: "Times that links had to wait because the journal had no room for them.",
	}, func() float64 { return float64(journal.Full()) }))
}

// maxStores is how many processes of one user may share a folder of stores.
const maxStores = 256

// firstFree opens the first of dir/1, dir/2, ... that no other process has, so
// that many can run at once and nothing of any is lost.
func firstFree(dir string) openStore {
	return func(c *config.Config, log *slog.Logger) (ancestry.Store, error) {
		for n := 1; ; n++ {
			s, err := openBolt(c, filepath.Join(dir, strconv.Itoa(n)), -1, log)
			if n == maxStores || !errors.Is(err, boltstore.ErrInUse) {
				return s, err
			}
		}
	}
}

func openBolt(c *config.Config, dir string, wait time.Duration, log *slog.Logger) (ancestry.Store, error) {
	s, err := boltstore.Open(boltstore.Options{
		Dir: dir, Wait: wait, MaxAge: c.Ancestry.Retention.Age.Duration,
		MaxLinks: c.Ancestry.Retention.Links, Journal: int(c.Ancestry.Store.Bolt.Journal), Logger: log,
	})
	if err != nil {
		return nil, err // and not a Store that holds nil
	}
	return s, nil
}

// storesOf is the folder of the stores of a host that is run by a user, for the
// command of that name.
func storesOf(command, hostID string) (string, error) {
	state, err := stateDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "wopproxy", command, strings.NewReplacer("/", "_", ":", "_", `\`, "_").Replace(hostID)), nil
}

// stateDir is where programs of this user keep what shall last.
func stateDir() (string, error) {
	if dir, ok := os.LookupEnv("XDG_STATE_HOME"); ok && filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for links: %w: say where with -store", err)
	}
	return filepath.Join(home, ".local", "state"), nil
}
