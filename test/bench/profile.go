package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// profile writes a profile of the processor while the clients are at work, if one
// is wanted and the contender is ours. What it returns waits for the end of it.
func (s *stage) profile(ctx context.Context, c *contender, k traffic, connections int) (wait func() error) {
	if s.profiles == "" || c.wop == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		done <- c.fetchProfile(ctx, s.window, filepath.Join(s.profiles, fmt.Sprintf("%s-%s-%d.pprof", c.name, k.name, connections)))
	}()
	return func() error { return <-done }
}

func (c *contender) fetchProfile(ctx context.Context, d time.Duration, file string) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", c.admin, d.Seconds())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Timeout: d + patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s: %s", resp.Status, text)
	}
	return os.WriteFile(file, text, 0o600)
}
