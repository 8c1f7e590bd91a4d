//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package boltstore

import (
	"errors"
	"os"
	"syscall"
	"time"

	berrors "go.etcd.io/bbolt/errors"
)

// lockDir makes dir this process's own for as long as the file is open. bbolt
// locks each of its files, but not the moment in which a window is made: of two
// processes that start in an empty directory, one would take the other's away.
// Where a directory can't be locked, as on some network file systems, those
// locks have to do.
func lockDir(dir string, wait time.Duration) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(wait); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return f, nil
		case time.Now().After(deadline):
			return nil, errors.Join(berrors.ErrTimeout, f.Close())
		}
		<-time.After(lockTimeout / 10)
	}
}
