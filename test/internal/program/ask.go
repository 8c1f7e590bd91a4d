package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Addresses are where a wopproxy listens, host and port.
type Addresses struct{ Ingress, Egress, Admin string }

// Serving waits until a wopproxy serves, as Await does, and returns where.
func (p *Process) Serving() (at Addresses, err error) {
	err = p.Await(func(line string) bool {
		var entry struct {
			Msg string
			Addresses
		}
		if json.Unmarshal([]byte(line), &entry) != nil || entry.Msg != "serving" {
			return false
		}
		at = entry.Addresses
		return true
	})
	return at, err
}

// Metrics returns what a program tells of itself at an address, by name and
// labels as they are written there.
func Metrics(ctx context.Context, address string) (map[string]float64, error) {
	text, err := get(ctx, "http://"+address+"/metrics")
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if values[line[:i]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
			return nil, fmt.Errorf("metrics at %s: %q", address, line)
		}
	}
	return values, nil
}

// ErrNotFound is in the error of what is answered with 404.
var ErrNotFound = errors.New("404 Not Found")

// GetJSON reads what is served at a URL into v. Any status but 200 is an error.
func GetJSON(ctx context.Context, url string, v any) error {
	text, err := get(ctx, url)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := direct.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return text, nil
	case http.StatusNotFound:
		return nil, fmt.Errorf("GET %s: %w: %s", url, ErrNotFound, strings.TrimSpace(string(text)))
	default:
		return nil, fmt.Errorf("GET %s: %s: %s", url, resp.Status, strings.TrimSpace(string(text)))
	}
}

// direct asks whatever the environment says of proxies, each time over a new
// connection: the old one may be to a process that is dead, and one that is held is
// counted where connections are.
var direct = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
