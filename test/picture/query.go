package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// dashboard is as much of a dashboard of Grafana as is drawn.
type dashboard struct {
	Title  string
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct {
				Stacking struct{ Mode string }
			}
		}
	}
	Targets []struct{ Expr, LegendFormat string }
}

func (p *panel) stacked() bool { return p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal" }

func readDashboard(file string) (d dashboard, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %w", file, err)
	}
	return d, nil
}

// span is the time that is drawn.
type span struct{ from, to time.Time }

// points of a line.
const points = 72

// series is a line: a value for each point, where there is one.
type series struct {
	legend string
	labels map[string]string
	values [points]float64
	known  [points]bool
}

// last is the newest value.
func (s *series) last() (float64, bool) {
	for i := points - 1; i >= 0; i-- {
		if s.known[i] {
			return s.values[i], true
		}
	}
	return 0, false
}

var placeholder = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// ask has Prometheus answer the queries of a panel.
func (p *scraper) ask(ctx context.Context, of *panel, at span) (all []*series, err error) {
	for _, t := range of.Targets {
		expr := strings.NewReplacer("$__rate_interval", fmt.Sprintf("%dms", p.window.Milliseconds()), "$job", ".*", "$instance", ".*").Replace(t.Expr)
		found, err := p.query(ctx, expr, at)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", of.Title, err)
		}
		for _, s := range found {
			s.legend = placeholder.ReplaceAllStringFunc(t.LegendFormat, func(m string) string {
				return s.labels[placeholder.FindStringSubmatch(m)[1]]
			})
			all = append(all, s)
		}
	}
	return all, nil
}

func (p *scraper) query(ctx context.Context, expr string, at span) (all []*series, err error) {
	step := at.to.Sub(at.from) / (points - 1)
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	form := url.Values{
		"query": {expr}, "start": {seconds(at.from)}, "end": {seconds(at.to)},
		"step": {strconv.FormatFloat(step.Seconds(), 'f', 3, 64)},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/query_range?"+form.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	for _, m := range answer.Data.Result {
		s := &series{labels: m.Metric}
		for _, v := range m.Values {
			when, _ := v[0].(float64)
			text, _ := v[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			i := int((when-float64(at.from.UnixMilli())/1000)/step.Seconds() + 0.5)
			if err == nil && value == value && i >= 0 && i < points {
				s.values[i], s.known[i] = value, true
			}
		}
		all = append(all, s)
	}
	return all, nil
}
