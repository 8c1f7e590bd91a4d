package wire

import (
	"encoding/binary"
	"slices"
)

// A message of gRPC travels in a frame: one byte that says whether it is
// compressed, and four that say how long it is, high byte first.
const frameHead = 5

// FrameLength returns how long the frame is that b begins with, its head
// included, and false while b is too short to tell.
func FrameLength(b []byte) (length int64, ok bool) {
	if len(b) < frameHead {
		return 0, false
	}
	return frameHead + int64(binary.BigEndian.Uint32(b[1:])), true
}

// AppendFrame appends message in a frame of its own.
func AppendFrame(dst, message []byte) []byte {
	dst = slices.Grow(dst, frameHead+len(message))
	dst = binary.BigEndian.AppendUint32(append(dst, 0), uint32(len(message)))
	return append(dst, message...)
}

// FrameMessage returns the message of b, which must be one frame and nothing
// else. A compressed message can't be read.
func FrameMessage(b []byte) ([]byte, Refusal) {
	switch n, ok := FrameLength(b); {
	case !ok || n != int64(len(b)):
		return nil, RefusedFraming
	case b[0] == 1:
		return nil, RefusedCompressed
	case b[0] != 0:
		return nil, RefusedFraming
	}
	return b[frameHead:], ""
}
