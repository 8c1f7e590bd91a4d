//go:build !linux

package main

import "time"

// sleepUntil may be late. What is measured here is measured on Linux alone.
func sleepUntil(t time.Time) { time.Sleep(time.Until(t)) }
