package boltstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/bits"
)

// filter answers whether a closed window may know a name: a Bloom filter of
// ten bits and seven hashes per name, which is wrong about one unknown name in
// a hundred and never about a known one.
//
// Host-given ids are random and new ones are in no window. Without a filter
// each of them would cost a look into a cold page of every file.
type filter struct{ words []uint64 }

const (
	filterBits   = 10
	filterHashes = 7
)

// newFilter returns a filter for n names.
func newFilter(n int) *filter {
	return &filter{make([]uint64, (n*filterBits+63)/64+1)}
}

func (f *filter) add(name []byte) {
	h, step := hashName(name)
	for range filterHashes {
		word, bit := f.place(h)
		f.words[word] |= bit
		h += step
	}
}

// has reports whether name may have been added.
func (f *filter) has(name []byte) bool {
	h, step := hashName(name)
	for range filterHashes {
		word, bit := f.place(h)
		if f.words[word]&bit == 0 {
			return false
		}
		h += step
	}
	return true
}

func (f *filter) place(h uint64) (word int, bit uint64) {
	hi, _ := bits.Mul64(h, uint64(len(f.words))*64)
	return int(hi / 64), 1 << (hi % 64)
}

// hashName returns two hashes of name. They are part of the file format.
func hashName(name []byte) (h, step uint64) {
	h = 14695981039346656037 // FNV-1a
	for _, c := range name {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h = mix(h)
	return h, mix(h) | 1
}

// mix spreads each bit of h over all of them (the finaliser of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// encode returns the filter as it is stored, behind a checksum: a wrong bit
// would hide a run.
func (f *filter) encode() []byte {
	b := make([]byte, 4, 4+8*len(f.words))
	for _, w := range f.words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	binary.LittleEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
	return b
}

func decodeFilter(b []byte) (*filter, error) {
	if len(b) < 12 || len(b)%8 != 4 || binary.LittleEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:]) {
		return nil, errors.New("damaged filter")
	}
	f := &filter{make([]uint64, len(b)/8)}
	for i := range f.words {
		f.words[i] = binary.LittleEndian.Uint64(b[4+8*i:])
	}
	return f, nil
}
