package peac

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// The algorithms of a Commitment: there is one of each.
const (
	TreeAlgorithm = "peac.merkle.ct-sorted-set-sha256-v1"
	HashAlgorithm = "sha256"
)

// Commitment stands for a set of receipts. It proves that a receipt is in the
// set; that the set is whole, it does not.
type Commitment struct {
	TreeAlg  string `json:"tree_alg"`
	HashAlg  string `json:"hash_alg"`
	Root     string `json:"root"`
	TreeSize int64  `json:"tree_size"`
}

// Proof shows that one receipt is in the set of a Commitment: its index in
// sorted order, and the hashes beside its way from the leaf to the root.
type Proof struct {
	TreeAlg   string   `json:"tree_alg"`
	HashAlg   string   `json:"hash_alg"`
	LeafIndex int64    `json:"leaf_index"`
	TreeSize  int64    `json:"tree_size"`
	Hashes    []string `json:"hashes"`
}

type digest = [sha256.Size]byte

// ReceiptRef returns the reference of a receipt: sha256: and the hash of the JWS
// as it was emitted.
func ReceiptRef(jws string) string { return ref(sha256.Sum256([]byte(jws))) }

func ref(d digest) string { return "sha256:" + hex.EncodeToString(d[:]) }

// parseRef reads a reference, or gives code.
func parseRef(s string, code Code) (d digest, err error) {
	if !hashRef.MatchString(s) {
		return d, fail(code, "no sha256: and 64 hex digits")
	}
	hex.Decode(d[:], []byte(s[len("sha256:"):]))
	return d, nil
}

// Commit returns the commitment to the receipts that refs name, in any order,
// each once.
func Commit(refs []string) (Commitment, error) {
	set, err := sorted(refs)
	if err != nil {
		return Commitment{}, err
	}
	return Commitment{TreeAlgorithm, HashAlgorithm, ref(treeHash(set)), int64(len(set))}, nil
}

// Prove returns the proof that target is one of refs.
func Prove(refs []string, target string) (Proof, error) {
	set, err := sorted(refs)
	if err != nil {
		return Proof{}, err
	}
	d, err := parseRef(target, CodeInvalidRef)
	if err != nil {
		return Proof{}, err
	}
	i, there := slices.BinarySearchFunc(set, d, compare)
	if !there {
		return Proof{}, fail(CodeTargetNotFound, "the receipt is not in the set")
	}
	hashes := []string{}
	for _, h := range path(i, set) {
		hashes = append(hashes, ref(h))
	}
	return Proof{TreeAlgorithm, HashAlgorithm, int64(i), int64(len(set)), hashes}, nil
}

// Verify says whether p shows that the receipt with the reference target is in
// the set of c. An error is about what is malformed, and not about what is false.
func (p Proof) Verify(c Commitment, target string) (bool, error) {
	leaf, err := parseRef(target, CodeInvalidRef)
	if err != nil {
		return false, err
	}
	root, err := c.check()
	if err != nil {
		return false, err
	}
	siblings, err := p.check()
	if err != nil || p.TreeSize != c.TreeSize {
		return false, err
	}
	// RFC 9162, 2.1.3.2.
	fn, sn, r := p.LeafIndex, p.TreeSize-1, leafHash(leaf)
	for _, s := range siblings {
		switch {
		case sn == 0:
			return false, nil
		case fn&1 == 1 || fn == sn:
			r = nodeHash(s, r)
			for fn&1 == 0 && fn != 0 {
				fn, sn = fn>>1, sn>>1
			}
		default:
			r = nodeHash(r, s)
		}
		fn, sn = fn>>1, sn>>1
	}
	return sn == 0 && r == root, nil
}

// check says what is malformed about c, and returns its root.
func (c Commitment) check() (digest, error) {
	if err := algorithms(c.TreeAlg, c.HashAlg); err != nil {
		return digest{}, err
	}
	if c.TreeSize < 1 || c.TreeSize > maxSafe {
		return digest{}, fail(CodeInvalidCommitment, "tree_size is %d", c.TreeSize)
	}
	return parseRef(c.Root, CodeInvalidRoot)
}

// check says what is malformed about p, and returns its hashes.
func (p Proof) check() ([]digest, error) {
	if err := algorithms(p.TreeAlg, p.HashAlg); err != nil {
		return nil, err
	}
	if p.TreeSize < 1 || p.TreeSize > maxSafe || p.LeafIndex < 0 || p.LeafIndex >= p.TreeSize {
		return nil, fail(CodeInvalidProof, "leaf_index is %d, tree_size %d", p.LeafIndex, p.TreeSize)
	}
	if len(p.Hashes) > 64 {
		return nil, fail(CodeInvalidProof, "%d hashes, and no tree is that high", len(p.Hashes))
	}
	hashes := make([]digest, len(p.Hashes))
	for i, h := range p.Hashes {
		var err error
		if hashes[i], err = parseRef(h, CodeInvalidProofHash); err != nil {
			return nil, err
		}
	}
	return hashes, nil
}

func algorithms(tree, hash string) error {
	switch {
	case tree != TreeAlgorithm:
		return fail(CodeUnsupportedTree, "tree_alg is not %s", TreeAlgorithm)
	case hash != HashAlgorithm:
		return fail(CodeUnsupportedHash, "hash_alg is not %s", HashAlgorithm)
	}
	return nil
}

// sorted reads refs into the order that the tree has.
func sorted(refs []string) ([]digest, error) {
	if len(refs) == 0 {
		return nil, fail(CodeEmptyInput, "no receipts")
	}
	set := make([]digest, len(refs))
	for i, r := range refs {
		var err error
		if set[i], err = parseRef(r, CodeInvalidRef); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(set, compare)
	if len(slices.Compact(slices.Clone(set))) < len(set) {
		return nil, fail(CodeDuplicateRef, "a receipt is there twice")
	}
	return set, nil
}

func compare(x, y digest) int { return bytes.Compare(x[:], y[:]) }

// The prefixes keep a leaf from passing for a node.
func leafHash(d digest) digest    { return sha256.Sum256(append([]byte{0}, d[:]...)) }
func nodeHash(l, r digest) digest { return sha256.Sum256(slices.Concat([]byte{1}, l[:], r[:])) }

func treeHash(set []digest) digest {
	if len(set) == 1 {
		return leafHash(set[0])
	}
	k := split(len(set))
	return nodeHash(treeHash(set[:k]), treeHash(set[k:]))
}

// path returns the siblings of leaf i, from the leaf to the root.
func path(i int, set []digest) []digest {
	if len(set) == 1 {
		return nil
	}
	k := split(len(set))
	if i < k {
		return append(path(i, set[:k]), treeHash(set[k:]))
	}
	return append(path(i-k, set[k:]), treeHash(set[:k]))
}

// split returns the largest power of two below n.
func split(n int) int {
	k := 1
	for k*2 < n {
		k *= 2
	}
	return k
}
