//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package boltstore

import "os"

// lockDir relies on the locks that bbolt takes on its files.
func lockDir(string) (*os.File, error) { return nil, nil }
