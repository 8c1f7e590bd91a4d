package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/config"
)

// settle is how long the file must be quiet before it is read: editors and
// Kubernetes change it in several steps.
const settle = 200 * time.Millisecond

// reloadMetrics tell whether the running configuration is the file's.
type reloadMetrics struct {
	ok, at prometheus.Gauge
}

func (m *reloadMetrics) register(reg prometheus.Registerer) {
	m.ok = prometheus.NewGauge(prometheus.GaugeOpts{Name: "wopproxy_config_last_reload_successful", Help: "1 if the newest configuration is in force, 0 if it had mistakes."})
	m.at = prometheus.NewGauge(prometheus.GaugeOpts{Name: "wopproxy_config_last_reload_success_timestamp_seconds", Help: "When the configuration in force was read."})
	m.ok.Set(1)
	m.at.SetToCurrentTime()
	reg.MustRegister(m.ok, m.at)
}

// watch begins to listen for SIGHUP and for changes of the file, and returns
// what takes a new configuration into force at each of them, until its context
// ends. Call it before anybody is told that the program serves: SIGHUP kills
// a process that does not listen for it.
func (s *sidecar) watch() func(context.Context) error {
	if s.source.file == "" {
		return func(context.Context) error { return nil }
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		// The directory: a ConfigMap is replaced by a rename beside the file.
		err = watcher.Add(filepath.Dir(s.source.file))
	}
	var changed <-chan fsnotify.Event
	var failed <-chan error
	if err != nil {
		s.log.Warn("the configuration is not watched; use SIGHUP", "err", err)
	} else {
		changed, failed = watcher.Events, watcher.Errors
	}
	return func(ctx context.Context) error {
		defer signal.Stop(hup)
		if watcher != nil {
			defer watcher.Close()
		}
		return s.reload(ctx, hup, changed, failed)
	}
}

// watched is the file whose directory is watched, and where its links led to last.
type watched struct{ file, real string }

func watch(file string) *watched {
	w := &watched{file: filepath.Clean(file)}
	w.moved()
	return w
}

// concerns reports whether an event in the directory may have changed the file: logs
// and other people's files lie there, too.
func (w *watched) concerns(e fsnotify.Event) bool {
	return e.Op != fsnotify.Chmod && (filepath.Clean(e.Name) == w.file || w.moved())
}

// moved reports whether the links of the file lead elsewhere than before.
func (w *watched) moved() bool {
	was := w.real
	w.real, _ = filepath.EvalSymlinks(w.file) // empty: there is none just now
	return w.real != was
}

// reload takes a new configuration into force on each signal, and when the file
// has changed, until ctx ends.
func (s *sidecar) reload(ctx context.Context, hup <-chan os.Signal, changed <-chan fsnotify.Event, failed <-chan error) error {
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	file := watch(s.source.file)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			s.reloadNow()
		case e := <-changed:
			if file.concerns(e) {
				quiet.Reset(settle)
			}
		case <-failed: // events were lost, ours perhaps; unread, it would stop the watcher
			quiet.Reset(settle)
		case <-quiet.C:
			s.reloadNow()
		}
	}
}

// reloadNow reads the file. One with mistakes changes nothing.
func (s *sidecar) reloadNow() {
	err := s.adopt()
	if err != nil {
		s.reloads.ok.Set(0)
		s.log.Error("configuration not reloaded; the old one stays in force", "file", s.source.file, "err", err)
	}
}

func (s *sidecar) adopt() error {
	next, err := s.source.load()
	if err != nil {
		return err
	}
	sec, err := readSecrets(next, s.env)
	if err != nil {
		return err
	}
	if err := s.proxy.SetPolicy(proxyPolicy(next, sec)); err != nil {
		return fmt.Errorf("%s: %w", s.source.file, err)
	}
	s.secrets.Store(sec)
	s.config.Store(next)
	s.level.Set(next.Log.Level)
	s.reloads.ok.Set(1)
	s.reloads.at.SetToCurrentTime()
	if keys := config.RestartKeys(s.started, next); len(keys) > 0 {
		s.log.Warn("configuration reloaded; some changes take a restart", "keys", strings.Join(keys, " "))
		return nil
	}
	s.log.Info("configuration reloaded", "file", s.source.file)
	return nil
}
