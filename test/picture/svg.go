package main

import (
	"cmp"
	"context"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

// A unit of a dashboard's grid, in pixels, and what lies around.
const (
	unitX, unitY = 50, 21
	header       = 44
	legendLine   = 14
	maxLegends   = 6
)

// Colours that stand out on light and on dark.
var colours = []string{"#2f81f7", "#e5793a", "#3fa34d", "#c4463a", "#8a63d2", "#12a594", "#c9a227", "#d6409f", "#7d8590"}

const style = `<style>
text { font: 11px system-ui, sans-serif; fill: #57606a }
.title { font-size: 17px; font-weight: 600 }
.name { font-weight: 600; fill: #24292f }
.big { font-size: 26px; font-weight: 600; fill: #2f81f7 }
.end { text-anchor: end }
.box { fill: #fff; stroke: #d0d7de }
.grid { stroke: #8c959f; stroke-opacity: .25; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .name, .title { fill: #d1d7e0 }
  .box { fill: #151b23; stroke: #3d444d }
}
</style>
`

// svg draws a dashboard.
func (d *dashboard) svg(ctx context.Context, p *scraper, at span) ([]byte, error) {
	height := 0
	for _, p := range d.Panels {
		height = max(height, p.GridPos.Y+p.GridPos.H)
	}
	var b strings.Builder
	w, h := 24*unitX+8, header+height*unitY+8
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n%s", w, h, w, h, html.EscapeString(d.Title), style)
	fmt.Fprintf(&b, `<text class="title" x="8" y="28">%s: %v of a wopproxy under load, as Prometheus has it</text>`+"\n", html.EscapeString(d.Title), at.to.Sub(at.from).Round(time.Second))
	for i := range d.Panels {
		p1 := &d.Panels[i]
		all, err := p.ask(ctx, p1, at)
		if err != nil {
			return nil, err
		}
		f := frame{&b, p1.GridPos.X*unitX + 6, header + p1.GridPos.Y*unitY + 2, p1.GridPos.W*unitX - 6, p1.GridPos.H*unitY - 5, p1.FieldConfig.Defaults.Unit}
		f.panel(p1, all)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String()), nil
}

// frame is where a panel is drawn.
type frame struct {
	b          *strings.Builder
	x, y, w, h int
	unit       string
}

func (f *frame) text(class string, x, y int, s string) {
	fmt.Fprintf(f.b, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, f.x+x, f.y+y, html.EscapeString(s))
}

func (f *frame) panel(p *panel, all []*series) {
	if p.Type == "row" {
		f.text("title", 2, 15, p.Title)
		return
	}
	fmt.Fprintf(f.b, `<rect class="box" x="%d" y="%d" width="%d" height="%d" rx="4"/>`+"\n", f.x, f.y, f.w, f.h)
	f.text("name", 8, 17, p.Title)
	switch {
	case p.Type == "stat":
		value := "no data"
		if len(all) > 0 {
			if v, ok := all[0].last(); ok {
				value = format(v, f.unit)
			}
		}
		f.text("big", 8, f.h-18, value)
	case p.Type == "table":
		for i, s := range all {
			v, _ := s.last()
			f.text("", 8, 36+legendLine*i, strings.Trim(s.labels["version"]+"  "+format(v, f.unit), " "))
		}
	case len(all) == 0:
		f.text("", 8, 36, "nothing")
	default:
		f.lines(p.stacked(), all)
	}
}

// lines draws series over time, the highest first in the legend.
func (f *frame) lines(stacked bool, all []*series) {
	peak := func(s *series) float64 { return slices.Max(s.values[:]) }
	slices.SortStableFunc(all, func(a, b *series) int { return cmp.Compare(peak(b), peak(a)) })
	rows := (min(len(all), maxLegends) + 1) / 2
	left, top, right, bottom := f.x+52, f.y+28, f.x+f.w-8, f.y+f.h-legendLine*rows-8
	tops := [points]float64{}
	highest := 0.0
	for _, s := range all {
		for i, v := range s.values {
			if stacked {
				tops[i] += v
			} else {
				tops[i] = v
			}
			highest = max(highest, tops[i])
		}
	}
	highest = round(highest, f.unit)
	for i := range 3 {
		y := bottom - (bottom-top)*i/2
		fmt.Fprintf(f.b, `<path class="grid" d="M%d %dH%d"/><text class="end" x="%d" y="%d">%s</text>`+"\n", left, y, right, left-5, y+4, format(highest*float64(i)/2, f.unit))
	}
	x := func(i int) int { return left + (right-left)*i/(points-1) }
	y := func(v float64) int { return bottom - int(float64(bottom-top)*v/highest+0.5) }
	below := [points]float64{}
	for n, s := range all {
		colour := colours[n%len(colours)]
		var path strings.Builder
		pen := "M"
		for i, v := range s.values {
			if stacked {
				v += below[i]
			} else if !s.known[i] {
				pen = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%d %d", pen, x(i), y(v))
			pen = "L"
		}
		if stacked {
			for i := points - 1; i >= 0; i-- {
				fmt.Fprintf(&path, "L%d %d", x(i), y(below[i]))
				below[i] += s.values[i]
			}
			fmt.Fprintf(f.b, `<path d="%sZ" fill="%s" fill-opacity=".55"/>`+"\n", &path, colour)
		} else {
			fmt.Fprintf(f.b, `<path d="%s" stroke="%s" stroke-width="1.4" fill="none"/>`+"\n", &path, colour)
		}
		if n < maxLegends {
			f.legend(n, len(all), rows, colour, s)
		}
	}
}

func (f *frame) legend(n, of, rows int, colour string, s *series) {
	x, y := 10+(f.w-16)/2*(n%2), f.h-legendLine*(rows-n/2)+6
	name := cmp.Or(s.legend, "value")
	if n == maxLegends-1 && of > maxLegends {
		name = fmt.Sprintf("%s, and %d more", name, of-maxLegends)
	}
	if limit := (f.w - 40) / 13; len(name) > limit {
		name = name[:limit] + "…"
	}
	fmt.Fprintf(f.b, `<path d="M%d %dh10" stroke="%s" stroke-width="3"/>`, f.x+x, f.y+y-4, colour)
	f.text("", x+14, y, name)
}

// round is a number that is not smaller, and round in its unit.
func round(v float64, unit string) float64 {
	if v <= 0 {
		return 1
	}
	if unit == "bytes" && v >= 1024 {
		return 1024 * round(v/1024, unit)
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 3, 4, 6, 8} {
		if v <= f*power {
			return f * power
		}
	}
	return 10 * power
}

// format writes a value in a unit of Grafana's.
func format(v float64, unit string) string {
	scaled := func(v float64, base float64, prefixes ...string) string {
		i := 0
		for ; v >= base && i < len(prefixes)-1; i++ {
			v /= base
		}
		return fmt.Sprintf("%.3g%s", v, prefixes[i])
	}
	switch unit {
	case "s":
		if v >= 1 || v == 0 {
			return fmt.Sprintf("%.3g s", v)
		}
		return scaled(v*1e6, 1000, " µs", " ms")
	case "bytes":
		return scaled(v, 1024, " B", " KiB", " MiB", " GiB")
	case "percentunit":
		return fmt.Sprintf("%.3g %%", 100*v)
	case "reqps", "ops", "cps":
		return scaled(v, 1000, "/s", "k/s", "M/s")
	case "dateTimeAsIso":
		return time.UnixMilli(int64(v)).UTC().Format("2006-01-02 15:04")
	}
	return scaled(v, 1000, "", "k", "M", "G")
}
