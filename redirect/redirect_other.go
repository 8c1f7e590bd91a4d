//go:build !linux

package redirect

import "errors"

var errLinux = errors.New("connections are redirected by Linux alone: use the explicit mode")

// Set puts r in the place of the rules that are there. Here it can't.
func (Rules) Set() (without, err error) { return nil, errLinux }

// Remove takes the rules away. Here there are none.
func Remove() error { return errLinux }
