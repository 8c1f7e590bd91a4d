package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

// The wire types of protobuf that proto3 still writes. Groups are not read: a
// message that has one is left alone.
const (
	pbVarint  = 0
	pbFixed64 = 1
	pbBytes   = 2
	pbFixed32 = 5
)

// pbField is one field of a protobuf message, by offsets into the body.
type pbField struct {
	number   int
	typ      byte
	start    int    // its tag
	from, to int    // its value; of pbBytes, what stands behind the length
	varint   uint64 // of pbVarint
}

// span is where the value stands. The key of a protobuf span is the tag, so that
// what lies between it and the value is the tag and the length.
func (f pbField) span() span { return span{key: int32(f.start), from: int32(f.from), to: int32(f.to)} }

// pbFields hands the fields of the message at body[from:to] to visit in their
// order. It reports false if that is no protobuf message; visit may have seen
// some of its fields by then.
func pbFields(body []byte, from, to int, visit func(pbField)) bool {
	b := body[:to]
	for i := from; i < to; {
		tag, n := binary.Uvarint(b[i:])
		number := tag >> 3
		if n <= 0 || number == 0 || number >= 1<<29 {
			return false
		}
		f := pbField{number: int(number), typ: byte(tag & 7), start: i, from: i + n}
		switch rest := b[f.from:]; f.typ {
		case pbVarint:
			f.varint, n = binary.Uvarint(rest)
			if n <= 0 {
				return false
			}
			f.to = f.from + n
		case pbFixed64:
			f.to = f.from + 8
		case pbFixed32:
			f.to = f.from + 4
		case pbBytes:
			size, n := binary.Uvarint(rest)
			if n <= 0 || size > uint64(len(rest)-n) {
				return false
			}
			f.from += n
			f.to = f.from + int(size)
		default:
			return false
		}
		if f.to > to {
			return false
		}
		visit(f)
		i = f.to
	}
	return true
}

// pbPicked is where the fields of some numbers stand in a message.
type pbPicked struct {
	at    [4]span // in the order asked for; without an end where absent, or twice there
	twice bool    // one of them is there twice
	n     int     // how many fields the message has
}

// pbPick looks for fields that hold strings or messages in the message at in. A
// field of that number and another type is an unknown one to all readers, and
// so it is here. No field has the number 0.
func pbPick(body []byte, in span, numbers ...int) (p pbPicked, ok bool) {
	var seen [len(p.at)]bool
	ok = pbFields(body, int(in.from), int(in.to), func(f pbField) {
		p.n++
		for i, number := range numbers {
			if f.number != number || f.typ != pbBytes {
				continue
			}
			if p.at[i] = f.span(); seen[i] {
				p.at[i], p.twice = span{}, true
			}
			seen[i] = true
		}
	})
	if !ok {
		return pbPicked{}, false
	}
	return p, true
}

// pbText returns a string field, or "" if it is absent, longer than limit, or no
// UTF-8, which every proto3 string must be.
func pbText(body []byte, s span, limit int) string {
	if int(s.to-s.from) > limit || !utf8.Valid(body[s.from:s.to]) {
		return ""
	}
	return string(body[s.from:s.to])
}

// appendPB appends a field that holds a string or a message.
func appendPB[T string | []byte](dst []byte, number int, value T) []byte {
	dst = binary.AppendUvarint(dst, uint64(number)<<3|pbBytes)
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(dst, value...)
}
