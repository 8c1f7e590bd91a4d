package peac

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
)

// verify checks a signature by PEAC's profile of Ed25519: what the standard
// library checks, and that neither the key nor R is a point that lets a signature
// hold for more than one message, or one of two encodings of a point.
func verify(key ed25519.PublicKey, message, signature []byte) bool {
	return len(key) == ed25519.PublicKeySize && len(signature) == ed25519.SignatureSize &&
		admissible(key) && admissible(signature[:32]) && ed25519.Verify(key, message, signature)
}

// prime is that of the field, 2^255−19, as a point has its y: little-endian.
var prime = unhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")

// small are the points that are refused by their y, whatever their sign: those
// of small order, and one more that PEAC's list has.
var small = [][]byte{
	unhex("0000000000000000000000000000000000000000000000000000000000000000"),
	unhex("0100000000000000000000000000000000000000000000000000000000000000"),
	unhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
	unhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
	unhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
	unhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac0305"),
}

// admissible says whether a point may be a key, or the R of a signature. With
// y = ±1 and the sign bit set, x would be −0: small has both by their y.
func admissible(point []byte) bool {
	y := bytes.Clone(point)
	y[31] &= 0x7f
	for _, s := range small {
		if bytes.Equal(y, s) {
			return false
		}
	}
	for i := 31; i >= 0; i-- {
		if y[i] != prime[i] {
			return y[i] < prime[i]
		}
	}
	return false
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}
