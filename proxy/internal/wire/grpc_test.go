package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	a2apb0 "github.com/a2aproject/a2a-go/a2apb"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

// services are A2A's gRPC services as the official SDK has them.
var services = []protoreflect.ServiceDescriptor{
	a2apb0.File_a2a_proto.Services().ByName("A2AService"),
	a2apb.File_a2av1_proto.Services().ByName("A2AService"),
}

// official returns what the SDK has at a path.
func official(path string) protoreflect.MethodDescriptor {
	for _, s := range services {
		if name, ok := strings.CutPrefix(path, "/"+string(s.FullName())+"/"); ok {
			return s.Methods().ByName(protoreflect.Name(name))
		}
	}
	return nil
}

// newMessage returns an empty message of the SDK.
func newMessage(t testing.TB, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	typ, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return typ.New().Interface()
}

// encode makes a message of its JSON.
func encode(t testing.TB, d protoreflect.MessageDescriptor, text []byte) []byte {
	t.Helper()
	m := newMessage(t, d)
	if err := protojson.Unmarshal(text, m); err != nil {
		t.Fatal(err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// show writes a message as JSON, the same each time.
func show(t testing.TB, d protoreflect.MessageDescriptor, b []byte) string {
	t.Helper()
	m := newMessage(t, d)
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatalf("%x is no %s: %v", b, d.FullName(), err)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatal(err)
	}
	return out.String() + "\n"
}

// TestRPCsAreOfficial: each method of the SDK's services is known, under the
// name that it has in JSON-RPC 1.0, and no other.
func TestRPCsAreOfficial(t *testing.T) {
	n := 0
	for _, s := range services {
		for i := range s.Methods().Len() {
			d := s.Methods().Get(i)
			path := fmt.Sprintf("/%s/%s", s.FullName(), d.Name())
			n++
			if !KnownRPC(path) || !IsA2AService(path) {
				t.Errorf("%s is not known", path)
			}
			if m := Read(nil, Hints{GRPC: path}); m.Protocol != A2A || m.Kind != Request || !KnownMethod(m.Method) || m.Refusal == "" {
				t.Errorf("Read(nil) of %s = %+v, want a request with the name of a known method, and a refusal", path, m)
			}
			if d.IsStreamingClient() {
				t.Errorf("%s takes a stream, which is not read", path)
			}
		}
	}
	if n != len(rpcs) {
		t.Errorf("%d methods are known, want %d", len(rpcs), n)
	}
	if m := Read(nil, Hints{GRPC: service10 + "Other"}); m.Protocol != A2A || m.Method != "Other" || m.Refusal != RefusedUnrecognised {
		t.Errorf("a method that is not known reads as %+v", m)
	}
}

// TestGoldenGRPC proves the rules that the files state, like TestGolden does:
// "in" is the message as JSON, and so is "out".
func TestGoldenGRPC(t *testing.T) {
	for _, kind := range []string{"grpc", "grpcanswer"} {
		files, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files of kind %s: %v", kind, err)
		}
		for _, file := range files {
			t.Run(kind+"/"+strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
				goldenGRPC(t, file, kind == "grpcanswer")
			})
		}
	}
}

func goldenGRPC(t *testing.T, file string, answer bool) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(ar.Comment)) == "" {
		t.Error("no prose: which rule does this prove?")
	}
	h, e := parseCase(t, section(ar, "case"))
	d := official(h.GRPC)
	if d == nil {
		t.Fatalf("%q is no method", h.GRPC)
	}
	got := map[string]string{}
	if answer {
		a, ok := ReadRPCAnswer(encode(t, d.Output(), section(ar, "in")), h.GRPC)
		if got["read"] = describeAnswer("", a); !ok {
			got["read"] = "unreadable\n"
		}
	} else {
		in := AppendFrame(nil, encode(t, d.Input(), section(ar, "in")))
		checkStampGRPC(t, in, h, e)
		m := Read(in, h)
		out, refused := m.Stamp(e)
		if got["read"] = describe(m); refused != "" && m.Refusal == "" {
			got["read"] += fmt.Sprintf("stamp: %s\n", refused)
		}
		message, refused := FrameMessage(out)
		if refused != "" {
			t.Fatalf("Stamp = %x, which is refused: %s", out, refused)
		}
		got["out"] = show(t, d.Input(), message)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		text := got[name]
		if *update {
			setSection(ar, name, text)
		} else if diff := cmp.Diff(string(section(ar, name)), text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// checkStampGRPC is checkStamp for gRPC. What an edit may touch is looked for
// with the official library, not with the code under test.
func checkStampGRPC(t *testing.T, in []byte, h Hints, e Edit) {
	t.Helper()
	before := bytes.Clone(in)
	m := Read(in, h)
	out, refused := m.Stamp(e)
	if !bytes.Equal(in, before) {
		t.Fatalf("Stamp changed its input %x", before)
	}
	if refused != "" {
		if !same(in, out) || !slices.Contains(Refusals(), refused) {
			t.Errorf("Stamp(%x) refused with %q but returned %x", in, refused, out)
		}
		return
	}
	if bytes.Equal(in, out) && !same(in, out) {
		t.Errorf("Stamp(%x) copied what it did not change", in)
	}
	if n, ok := FrameLength(out); !ok || n != int64(len(out)) || out[0] != 0 {
		t.Fatalf("Stamp(%x) = %x, which is not one frame", in, out)
	}
	path := carrierPath(h.GRPC)
	if diff := cmp.Diff(otherFields(t, in[frameHead:], path), otherFields(t, out[frameHead:], path)); diff != "" {
		t.Fatalf("Stamp(%x) = %x changes other fields (-in +out):\n%s", in, out, diff)
	}
	checkOfficial(t, in, out, h, e)

	after := Read(out, h)
	if after.Refusal != "" {
		t.Fatalf("Stamp(%x) = %x, which is refused with %q", in, out, after.Refusal)
	}
	if again, refused := after.Stamp(e); refused != "" || !same(out, again) {
		t.Fatalf("Stamp(%x) = %x, and again %x %q", in, out, again, refused)
	}
	got, want := [2]string{after.Traceparent, after.Tracestate}, [2]string{e.Traceparent, e.Tracestate}
	if e.Traceparent == "" {
		want[1] = ""
	}
	switch {
	case !m.sends:
		want = [2]string{}
	case after.pb.openwop.to == 0:
		if e.InMessage && e.Traceparent != "" {
			t.Errorf("%x has no carrier", out)
		}
		want = [2]string{}
	}
	if got != want {
		t.Errorf("%x carries %q, want %q", out, got, want)
	}
	without := func(m Message) Message {
		m.Traceparent, m.Tracestate, m.doc, m.pb, m.rpc = "", "", doc{}, pbDoc{}, nil
		return m
	}
	if diff := cmp.Diff(without(m), without(after), cmp.AllowUnexported(Message{}, doc{}, span{}, pbDoc{}, rpc{})); diff != "" {
		t.Errorf("Stamp(%x) = %x, which reads as another message:\n%s", in, out, diff)
	}
}

// step is a field on the way to the carrier. A key selects an entry of a Struct.
type step struct {
	number protowire.Number
	key    string
}

// carrierPath is the way from the request to the two entries that an edit may
// touch.
func carrierPath(path string) []step {
	d := official(path)
	for _, name := range []protoreflect.Name{"request", "message"} {
		if f := d.Input().Fields().ByName(name); f != nil {
			return []step{{f.Number(), ""}, {6, ""}, {1, "openwop"}, {2, ""}, {5, ""}}
		}
	}
	return nil
}

// otherFields lists the fields of a message in their order, each with the way to
// it and its bytes, except the entries that an edit may touch and what only
// holds them.
func otherFields(t *testing.T, b []byte, path []step) (list []string) {
	t.Helper()
	for len(b) > 0 {
		number, typ, tag := protowire.ConsumeTag(b)
		n := tag + protowire.ConsumeFieldValue(number, typ, b[max(tag, 0):])
		if tag < 0 || n < tag {
			t.Fatalf("%x is no protobuf", b)
		}
		field := b[:n]
		value, _ := protowire.ConsumeBytes(b[tag:n])
		b = b[n:]
		switch {
		case typ != protowire.BytesType:
		case len(path) > 0 && number == path[0].number && (path[0].key == "" || keyOf(value) == path[0].key):
			for _, line := range otherFields(t, value, path[1:]) {
				list = append(list, fmt.Sprintf("%d/%s", number, line))
			}
			continue
		case path != nil && len(path) == 0 && number == 1 && (keyOf(value) == "traceparent" || keyOf(value) == "tracestate"):
			continue
		}
		if len(path) == 2 && number == 1 && string(value) == "openwop" {
			continue // the key of an entry that the edit may have made
		}
		list = append(list, fmt.Sprintf("%x", field))
	}
	return list
}

// keyOf returns the key of an entry of a Struct.
func keyOf(entry []byte) string {
	for len(entry) > 0 {
		number, typ, tag := protowire.ConsumeTag(entry)
		if tag < 0 {
			return ""
		}
		if number == entryKey && typ == protowire.BytesType {
			key, _ := protowire.ConsumeBytes(entry[tag:])
			return string(key)
		}
		n := protowire.ConsumeFieldValue(number, typ, entry[tag:])
		if n < 0 {
			return ""
		}
		entry = entry[tag+n:]
	}
	return ""
}

// checkOfficial: what the SDK can read before an edit it can read after it, and
// it finds the same but for the carrier.
func checkOfficial(t *testing.T, in, out []byte, h Hints, e Edit) {
	t.Helper()
	d := official(h.GRPC).Input()
	before, after := newMessage(t, d), newMessage(t, d)
	if proto.Unmarshal(in[frameHead:], before) != nil {
		return
	}
	if err := proto.Unmarshal(out[frameHead:], after); err != nil {
		t.Fatalf("Stamp(%x) = %x, which the SDK can't read: %v", in, out, err)
	}
	got, has := carried(after)
	if has && (got["traceparent"] != e.Traceparent || e.Traceparent != "" && got["tracestate"] != e.Tracestate) {
		t.Errorf("%x carries %v for the SDK, want %+v", out, got, e)
	}
	strip(before)
	strip(after)
	if diff := cmp.Diff(before, after, protocmp.Transform(), cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("Stamp(%x) = %x, which the SDK reads as another message:\n%s", in, out, diff)
	}
}

// sentMetadata is the metadata of the message that a request sends.
func sentMetadata(m proto.Message) *structpb.Struct {
	switch m := m.(type) {
	case *a2apb0.SendMessageRequest:
		return m.GetRequest().GetMetadata()
	case *a2apb.SendMessageRequest:
		return m.GetMessage().GetMetadata()
	}
	return nil
}

// carried is what the SDK finds in metadata.openwop, if that is there.
func carried(m proto.Message) (map[string]string, bool) {
	openwop := sentMetadata(m).GetFields()["openwop"].GetStructValue()
	got := map[string]string{}
	for key, v := range openwop.GetFields() {
		got[key] = v.GetStringValue()
	}
	return got, openwop != nil
}

// strip takes the carrier away, and what holds nothing else.
func strip(m proto.Message) {
	metadata := sentMetadata(m)
	if openwop := metadata.GetFields()["openwop"].GetStructValue(); openwop != nil {
		delete(openwop.Fields, "traceparent")
		delete(openwop.Fields, "tracestate")
		if len(openwop.Fields) == 0 {
			delete(metadata.Fields, "openwop")
		}
	}
	if metadata == nil || len(metadata.Fields) > 0 {
		return
	}
	switch m := m.(type) {
	case *a2apb0.SendMessageRequest:
		m.Request.Metadata = nil
	case *a2apb.SendMessageRequest:
		m.Message.Metadata = nil
	}
}

// field encodes one field, for messages that no library would write.
func field(number int, value ...any) []byte {
	var b []byte
	for _, v := range value {
		switch v := v.(type) {
		case string:
			b = append(b, v...)
		case []byte:
			b = append(b, v...)
		}
	}
	return appendPB(nil, number, b)
}

// TestRefusedGRPC: what is not exactly one plain frame, what is no protobuf, and
// what two readers could read in two ways, is not edited.
func TestRefusedGRPC(t *testing.T) {
	id := field(1, "m-1")
	text := func(key, value string) []byte { return field(1, field(1, key), field(2, field(3, value))) }
	openwop := func(inside ...any) []byte { return field(1, field(1, "openwop"), field(2, field(5, inside...))) }
	sent := func(inside ...any) []byte { return AppendFrame(nil, field(2, inside...)) }
	for _, c := range []struct {
		name string
		body []byte
		want Refusal
	}{
		{"no frame", nil, RefusedFraming},
		{"half a head", []byte{0, 0, 0}, RefusedFraming},
		{"half a frame", sent(id)[:8], RefusedFraming},
		{"two frames", append(sent(id), sent(id)...), RefusedFraming},
		{"a byte behind", append(sent(id), 0), RefusedFraming},
		{"a flag that is none", append([]byte{2}, sent(id)[1:]...), RefusedFraming},
		{"compressed", append([]byte{1}, sent(id)[1:]...), RefusedCompressed},
		{"nothing sent", AppendFrame(nil, nil), RefusedMessageNotObject},
		{"two messages", AppendFrame(nil, append(field(2, id), field(2, id)...)), RefusedDuplicateKey},
		{"JSON", AppendFrame(nil, []byte(`{"message":{}}`)), RefusedNotProtobuf},
		{"a field cut short", AppendFrame(nil, field(2, id)[:4]), RefusedNotProtobuf},
		{"a message cut short", sent("\x0a\x7f"), RefusedNotProtobuf},
		{"a group", sent("\x5b\x5c"), RefusedNotProtobuf},
		{"a field 0", sent("\x02\x00"), RefusedNotProtobuf},
		{"a length of 70 bits", sent("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), RefusedNotProtobuf},
		{"a length beyond the end", sent("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), RefusedNotProtobuf},
		{"two metadata", sent(id, field(6), field(6)), RefusedDuplicateKey},
		{"metadata cut short", sent(id, field(6, "\x0a\x7f")), RefusedNotProtobuf},
		{"an entry cut short", sent(id, field(6, field(1, "\x0a\x7f"))), RefusedNotProtobuf},
		{"two openwop", sent(id, field(6, openwop(), openwop())), RefusedDuplicateKey},
		{"two keys in an entry", sent(id, field(6, field(1, field(1, "a"), field(1, "openwop")))), RefusedDuplicateKey},
		{"more in openwop's entry", sent(id, field(6, append(openwop(), field(1, field(1, "openwop"), field(2), field(3))...))), RefusedDuplicateKey},
		{"openwop a string", sent(id, field(6, text("openwop", "x"))), RefusedMetaNotObject},
		{"openwop nothing", sent(id, field(6, field(1, field(1, "openwop")))), RefusedMetaNotObject},
		{"openwop of two kinds", sent(id, field(6, field(1, field(1, "openwop"), field(2, field(5), field(3, "x"))))), RefusedMetaNotObject},
		{"openwop cut short", sent(id, field(6, openwop("\x0a\x7f"))), RefusedNotProtobuf},
		{"two traceparents", sent(id, field(6, openwop(text("traceparent", "x"), text("traceparent", "y")))), RefusedDuplicateKey},
		{"a traceparent of two kinds", sent(id, field(6, openwop(field(1, field(1, "traceparent"), field(2, field(3, "x"), field(3, "y")))))), RefusedDuplicateKey},
		{"a traceparent cut short", sent(id, field(6, openwop(field(1, field(1, "traceparent"), field(2, "\x0a\x7f"))))), RefusedNotProtobuf},
	} {
		h := Hints{GRPC: service10 + "SendMessage"}
		m := Read(c.body, h)
		if m.Refusal != c.want || m.Protocol != A2A || m.Method != "SendMessage" {
			t.Errorf("%s: Read(%x) = %+v, want refusal %q", c.name, c.body, m, c.want)
		}
		for _, e := range fuzzEdits {
			checkStampGRPC(t, c.body, h, e)
		}
	}
	// A field of another type than it should have is one that nobody knows.
	body := sent(id, "\x30\x01", "\x10\x01")
	m := Read(body, Hints{GRPC: service10 + "SendMessage"})
	if m.Refusal != "" || m.MessageID != "m-1" || m.ContextID != "" {
		t.Errorf("Read(%x) = %+v, want the message read", body, m)
	}
	if _, refused := m.Stamp(Edit{Traceparent: testTraceparent, InMessage: true, MaxSize: len(body) + 10}); refused != RefusedTooLarge {
		t.Errorf("Stamp beyond its size: %q, want %q", refused, RefusedTooLarge)
	}
}

// TestStampGRPCKeepsBytes: an edit keeps lengths that are written longer than
// they need to be, unknown fields, and the order of all, but for the lengths of
// what becomes longer.
func TestStampGRPCKeepsBytes(t *testing.T) {
	carrier := field(1, field(1, "traceparent"), field(2, field(3, "x")))
	metadata := slices.Concat([]byte("\x08\x07"), field(1, field(1, "openwop"), field(2, field(5, carrier))), field(9, "z"))
	message := slices.Concat(field(99, "before"), []byte("\x0a\x83\x80\x00m-1"), field(6, metadata), field(5, "part"), []byte("\x9d\x06wxyz"))
	in := AppendFrame(nil, slices.Concat(field(1, "tenant"), field(2, message), field(3, "bad \xff")))
	for _, e := range fuzzEdits {
		checkStampGRPC(t, in, Hints{GRPC: service10 + "SendStreamingMessage"}, e)
	}
}

func TestReadStatus(t *testing.T) {
	for _, c := range []struct{ status, message, code, text string }{
		{"0", "fine", "", ""},
		{"1", "", "CANCELLED", ""},
		{"5", "no task %22a%22 %e2%82%ac", "NOT_FOUND", `no task "a" €`},
		{"13", "100%, %zz %4", "INTERNAL", "100%, %zz %4"},
		{"16", "%ff%C3", "UNAUTHENTICATED", "\uFFFD"},
		{"17", "", "_OTHER", ""},
		{"", "", "_OTHER", ""},
		{"-1", "", "_OTHER", ""},
		{"2", strings.Repeat("%e2%82%ac", 600), "UNKNOWN", strings.Repeat("€", maxErrorMessage/3)},
	} {
		a, failed := ReadStatus(c.status, c.message)
		if failed != (c.code != "") || a.ErrorCode != c.code || a.ErrorMessage != c.text {
			t.Errorf("ReadStatus(%q, %q) = %+v, %v, want %q %q", c.status, c.message, a, failed, c.code, c.text)
		}
		if KnownStatus(a.ErrorCode) == (c.code == "" || c.code == "_OTHER") {
			t.Errorf("KnownStatus(%q) is wrong", a.ErrorCode)
		}
	}
}

// seedsGRPC returns the messages of the golden files, framed or not.
func seedsGRPC(t testing.TB, dir string, framed bool) (seeds map[string][][]byte) {
	seeds = map[string][][]byte{}
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files in %s: %v", dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ar := txtar.Parse(text)
		h, _ := parseCase(t, section(ar, "case"))
		d := official(h.GRPC)
		if framed {
			seeds[h.GRPC] = append(seeds[h.GRPC], AppendFrame(nil, encode(t, d.Input(), section(ar, "in"))))
		} else {
			seeds[h.GRPC] = append(seeds[h.GRPC], encode(t, d.Output(), section(ar, "in")))
		}
	}
	return seeds
}

// FuzzGRPC: what Stamp makes of a request reads as the same message with the
// context in it, and everything else is as it was, byte for byte.
func FuzzGRPC(f *testing.F) {
	for path, bodies := range seedsGRPC(f, "grpc", true) {
		for _, body := range bodies {
			f.Add(body, path)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, path string) {
		if !KnownRPC(path) {
			return
		}
		for _, e := range fuzzEdits {
			checkStampGRPC(t, in, Hints{GRPC: path}, e)
			e.InMessage = false
			checkStampGRPC(t, in, Hints{GRPC: path}, e)
		}
	})
}

// FuzzRPCAnswer: what is read of an answer is what the SDK reads, and bounded.
func FuzzRPCAnswer(f *testing.F) {
	for path, messages := range seedsGRPC(f, "grpcanswer", false) {
		for _, message := range messages {
			f.Add(message, path)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, path string) {
		a, ok := ReadRPCAnswer(in, path)
		if !ok {
			if diff := cmp.Diff(Answer{}, a); diff != "" {
				t.Errorf("ReadRPCAnswer(%x) is not ok, but says %s", in, diff)
			}
			return
		}
		if len(a.TaskID) > maxID || len(a.ContextID) > maxID || a.BareMessage != (a.TaskID == "") {
			t.Errorf("ReadRPCAnswer(%x) contradicts itself: %+v", in, a)
		}
		m := newMessage(t, official(path).Output())
		if proto.Unmarshal(in, m) != nil {
			return // it is read no deeper than it has to be
		}
		if task, context := answered(m); a.TaskID != task || a.ContextID != context && len(context) <= maxID {
			t.Errorf("ReadRPCAnswer(%x) = %+v, and the SDK reads %q %q", in, a, task, context)
		}
	})
}

// answered returns the task and the context that the SDK finds in an answer.
func answered(m proto.Message) (task, context string) {
	type about interface {
		GetTaskId() string
		GetContextId() string
	}
	what := m
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.ContainingOneof() != nil && f.Message() != nil {
			what = v.Message().Interface()
		}
		return true
	})
	switch what := what.(type) {
	case about:
		return what.GetTaskId(), what.GetContextId()
	case interface {
		GetId() string
		GetContextId() string
	}:
		return what.GetId(), what.GetContextId()
	}
	return "", ""
}
