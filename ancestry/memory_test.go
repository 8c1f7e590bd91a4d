package ancestry_test

import (
	"testing"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/ancestrytest"
)

func TestMemoryContract(t *testing.T) {
	ancestrytest.Store(t, func(*testing.T) ancestry.Store { return ancestry.NewMemory() })
}
