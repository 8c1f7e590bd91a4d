package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// The graph is one panel for each column, all with the same time below them. Its
// colours stand out on light and on dark.
const (
	width, panel      = 860, 110
	leftEdge, topEdge = 70, 60
	plotW, plotH      = width - leftEdge - 40, 70
)

const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #57606a }
.title { font-size: 16px; font-weight: 600 }
.name { font-weight: 600 }
.number { text-anchor: end }
.time { text-anchor: middle }
.axis { stroke: #8c959f; fill: none }
.line { stroke: #0969da; stroke-width: 1.5; fill: none; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .line { stroke: #4493f8 }
}
</style>
`

// draw draws samples: their times, and for each column its values.
func draw(exchanges int64, at []time.Duration, values [][]float64) []byte {
	var b strings.Builder
	last := max(time.Second, at[len(at)-1])
	height := topEdge + len(columns)*panel + 20
	title := fmt.Sprintf("%d exchanges through one wopproxy in %v", exchanges, last.Round(time.Second))
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n", width, height, width, height, title)
	b.WriteString(style)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="28">%s</text>`+"\n", leftEdge, title)
	for i, c := range columns {
		name := c.title
		if c.unit != "" {
			name += ", " + c.unit
		}
		drawPanel(&b, topEdge+i*panel, name, at, values[i], last)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// drawPanel draws one column, from nothing up to a round number.
func drawPanel(b *strings.Builder, top int, name string, at []time.Duration, values []float64, last time.Duration) {
	highest := round(slices.Max(values))
	bottom := top + 10 + plotH
	fmt.Fprintf(b, `<text class="name" x="%d" y="%d">%s</text>`+"\n", leftEdge, top+4, name)
	fmt.Fprintf(b, `<path class="axis" d="M%d %dV%dH%d"/>`+"\n", leftEdge, top+10, bottom, leftEdge+plotW)
	fmt.Fprintf(b, `<text class="number" x="%d" y="%d">%g</text><text class="number" x="%d" y="%d">0</text>`+"\n", leftEdge-6, top+18, highest, leftEdge-6, bottom)
	for i := range 5 {
		fmt.Fprintf(b, `<text class="time" x="%d" y="%d">%s</text>`+"\n", leftEdge+plotW*i/4, bottom+14, clock(last*time.Duration(i)/4))
	}
	b.WriteString(`<polyline class="line" points="`)
	for i, v := range values {
		fmt.Fprintf(b, "%.1f,%.1f ", leftEdge+plotW*at[i].Seconds()/last.Seconds(), float64(bottom)-plotH*v/highest)
	}
	b.WriteString(`"/>` + "\n")
}

// round is the next of 1, 2 and 5, or ten times or a tenth of these.
func round(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.5, 2, 3, 5, 7.5} {
		if v <= f*unit {
			return f * unit
		}
	}
	return 10 * unit
}

// clock is a time in the form h:mm, or m:ss where it is short.
func clock(d time.Duration) string {
	if d < time.Hour {
		return fmt.Sprintf("%d:%02d min", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d:%02d h", int(d.Hours()), int(d.Minutes())%60)
}
