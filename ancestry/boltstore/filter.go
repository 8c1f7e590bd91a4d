package boltstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/bits"
)

// filter answers whether a closed window may know a name: a Bloom filter of
// twelve bits and seven hashes per name, which is wrong about one unknown name
// in two hundred and never about a known one.
//
// Host-given ids are random and new ones are in no window. Without a filter
// each of them would cost a look into a cold page of every file. All bits of a
// name lie in one block of the size of a cache line, because the filters of all
// windows are asked for each link: with bits anywhere, a store of ten million
// links would miss the cache some hundred times for each.
//
// A filter is a checksum and the blocks. It stays where it is, in the mapped
// file: those of ten million links have 15 MB for each name that a run goes by.
type filter struct{ blocks []byte }

const (
	filterBits   = 12
	filterHashes = 7
	filterBlock  = 64 // bytes
	filterHead   = 4  // CRC-32 of the blocks: a wrong bit would hide a run
)

// newFilter returns a filter for n names.
func newFilter(n int) filter {
	return filter{make([]byte, (n*filterBits/8/filterBlock+1)*filterBlock)}
}

func (f filter) add(name []byte) {
	h := hashName(name)
	block := f.block(h)
	for at := h.bits; at != 0; at >>= 9 {
		block[at>>3&(filterBlock-1)] |= 1 << (at & 7)
	}
}

// has reports whether the name with the hash may have been added.
func (f filter) has(h nameHash) bool {
	block := f.block(h)
	for at := h.bits; at != 0; at >>= 9 {
		if block[at>>3&(filterBlock-1)]&(1<<(at&7)) == 0 {
			return false
		}
	}
	return true
}

func (f filter) block(h nameHash) []byte {
	n, _ := bits.Mul64(h.block, uint64(len(f.blocks)/filterBlock))
	return f.blocks[n*filterBlock:][:filterBlock]
}

// nameHash is where the bits of a name are: which block, and nine bits for the
// place of each. It is part of the file format.
type nameHash struct{ block, bits uint64 }

func hashName(name []byte) nameHash {
	h := uint64(14695981039346656037) // FNV-1a
	for _, c := range name {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h = mix(h)
	// The highest bit makes seven turns of nine bits out of each.
	return nameHash{h, mix(h)&(1<<(9*filterHashes)-1) | 1<<(9*filterHashes-1)}
}

// mix spreads each bit of h over all of them (the finaliser of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// encode returns the filter as it is stored.
func (f filter) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, filterHead+len(f.blocks)), crc32.ChecksumIEEE(f.blocks))
	return append(b, f.blocks...)
}

// decodeFilter returns the filter that is stored as b, and stays there.
func decodeFilter(b []byte) (*filter, error) {
	if len(b) < filterHead+filterBlock || (len(b)-filterHead)%filterBlock != 0 ||
		binary.LittleEndian.Uint32(b) != crc32.ChecksumIEEE(b[filterHead:]) {
		return nil, errors.New("damaged filter")
	}
	return &filter{b[filterHead:]}, nil
}
