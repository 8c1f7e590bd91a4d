// Package wire reads and writes propagation context in the formats that agents
// use on the wire: W3C trace context, MCP, A2A over JSON and gRPC, and Tylo. It
// does no I/O, knows neither network nor configuration, and imports only the
// standard library, so that every codec can be fuzzed on its own.
//
// It promises its callers four things:
//
//   - An edit changes the members it names and leaves every other byte of the
//     message as it was. The same edit again changes nothing.
//   - What is ambiguous is refused with a Refusal instead of edited: a key that
//     occurs twice, or beside a spelling that some readers take for it. The value
//     of a key that occurs twice is not even read.
//   - A body is gone over once: the scan that classifies a message also finds
//     what is read from it and the places where it may be edited.
//   - Nothing panics, whatever the input, and what is read is bounded.
package wire
