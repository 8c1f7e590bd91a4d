// Package wire reads and writes propagation context in the formats that agents
// use on the wire: W3C trace context, MCP, A2A and Tylo. It does no I/O, knows
// neither network nor configuration, and imports only the standard library, so
// that every codec can be fuzzed on its own.
//
// It promises its callers four things:
//
//   - An edit changes the members it names and leaves every other byte of the
//     message as it was. The same edit again changes nothing.
//   - What is ambiguous (a key given twice, a spelling that some readers take
//     for it) is not read, and is refused with a Refusal instead of edited.
//   - A body is gone over once: the scan that classifies a message also finds
//     what is read from it and the places where it may be edited.
//   - Nothing panics, whatever the input, and no text longer than its bound is
//     kept from it.
package wire
