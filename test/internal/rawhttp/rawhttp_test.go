package rawhttp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBothSides has a client and a server of the package talk, in clear and by TLS:
// bodies with a length, in chunks and without any, and both ways of ending it.
func TestBothSides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	a, err := NewAuthority(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the authority's file: %v, %v", info.Mode(), err)
	}
	cert, err := a.Issue()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Handle: func(conn net.Conn, head, body []byte) error {
		said := fmt.Sprintf("%s %s %s", Target(head), Header(head, []byte("\r\nx-number:")), body)
		switch string(Target(head)) {
		case "/chunks":
			_, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", said[:4], len(said)-4, said[4:])
			return err
		case "/reset":
			return Abort(conn)
		}
		_, err := fmt.Fprintf(conn, "HTTP/1.1 201 Made\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
		return err
	}}
	plain, err := s.Listen(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	secure, err := s.Listen(&cert)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{plain, secure} {
		c, err := Dial(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		if address == secure {
			if err := c.Secure(t.Context(), a.Pool); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			path, body, want string
			head             Head
		}{
			{"/length", "body", "/length  000000000000002a body", Head{Status: 201, Length: 30, Last: true}},
			{"/none", "", "/none  000000000000002a ", Head{Status: 201, Length: 24, Last: true}},
			{"/chunks", strings.Repeat("long ", 5000), "/chunks  000000000000002a " + strings.Repeat("long ", 5000), Head{Status: 200, Length: -1, Chunked: true}},
		} {
			request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nX-Number: %s\r\n", tt.path, Mark)
			if tt.body != "" {
				request = fmt.Appendf(request, "Content-Length: %d\r\n", len(tt.body))
			}
			request = append(request, "\r\n"+tt.body...)
			for _, at := range Marks(request) {
				Number(request[at:], 42)
			}
			if err := errors.Join(c.Send(request[:30]), c.Send(request[30:])); err != nil {
				t.Fatal(err)
			}
			h, err := c.Head(nil)
			if err != nil || h != tt.head {
				t.Fatalf("%s: head %+v, %v, want %+v", tt.path, h, err, tt.head)
			}
			if err := c.Body(h, &Answer{Body: []byte(tt.want)}); err != nil {
				t.Fatalf("%s: %v", tt.path, err)
			}
		}
		if n := s.Open(); n != 1 {
			t.Errorf("%d connections are open, want 1", n)
		}
		if err := c.Send([]byte("POST /reset HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Head(nil); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("after a reset: %v", err)
		}
		for end := time.Now().Add(time.Minute); s.Open() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	c, err := Dial(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if err := c.Send([]byte("POST /chunks HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Head(nil); err != nil {
		t.Fatal(err)
	}
	s.HangUp()
	if err := c.Body(Head{Chunked: true}, &Answer{Body: []byte("/chunks   and more")}); err == nil {
		t.Error("a body that is shorter is taken")
	}
	if _, err := c.Head(nil); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("after it hung up: %v", err)
	}
}
