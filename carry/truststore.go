package carry

import (
	"bytes"
	"crypto/sha1" // the format's own checksum
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"unicode/utf16"
)

// TrustStorePassword is the password of what [TrustStore] returns. It protects
// nothing: a trust store holds no secret.
const TrustStorePassword = "changeit"

// TrustStore returns the certificates of a PEM bundle as a JKS trust store, the
// one form of roots that Java reads from a file.
//
// The format: magic, version, count, then for each certificate the tag 2, an
// alias, a time, the type of certificate and its bytes; and SHA-1 over the
// password, a constant, and all of that.
func TrustStore(bundle []byte) ([]byte, error) {
	var entries bytes.Buffer
	n := uint32(0)
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		put(&entries, uint32(2))
		putText(&entries, fmt.Sprintf("root%d", n))
		put(&entries, uint64(0)) // when it was added, which nobody asks
		putText(&entries, "X.509")
		put(&entries, uint32(len(block.Bytes)))
		entries.Write(block.Bytes)
	}
	if n == 0 {
		return nil, fmt.Errorf("make a trust store: the bundle holds no PEM certificate")
	}
	var store bytes.Buffer
	put(&store, uint32(0xfeedfeed))
	put(&store, uint32(2))
	put(&store, n)
	store.Write(entries.Bytes())

	sum := sha1.New()
	for _, unit := range utf16.Encode([]rune(TrustStorePassword)) {
		sum.Write([]byte{byte(unit >> 8), byte(unit)})
	}
	sum.Write([]byte("Mighty Aphrodite"))
	sum.Write(store.Bytes())
	return sum.Sum(store.Bytes()), nil
}

func put[T uint32 | uint64](b *bytes.Buffer, v T) { _ = binary.Write(b, binary.BigEndian, v) }

// putText writes a short text as Java does.
func putText(b *bytes.Buffer, s string) {
	_ = binary.Write(b, binary.BigEndian, uint16(len(s)))
	b.WriteString(s)
}
