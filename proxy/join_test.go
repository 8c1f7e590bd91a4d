package proxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// speech is how a test comes to two ends that speak whatever they like.
type speech struct {
	name     string
	upgraded bool // by a request in it
	secure   bool // in TLS that we open
	inward   bool // by ingress
	silent   bool // nobody has spoken yet
}

// open returns the ends of client and server.
func (sp speech) open(t *testing.T) (client, server net.Conn) {
	t.Helper()
	far, over := make(chan net.Conn, 1), make(chan struct{})
	secured, roots := secureServer(t, http.NotFound)
	to := talker(t, func(c *rawConn) {
		end := net.Conn(c)
		if sp.secure {
			end = tls.Server(c.Conn, &tls.Config{Certificates: secured.TLS.Certificates, MinVersion: tls.VersionTLS12})
		}
		if sp.upgraded {
			if _, err := http.ReadRequest(bufio.NewReaderSize(end, 16)); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(end, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
		}
		far <- end
		<-over
	})
	t.Cleanup(func() { close(over) })
	s := newSidecar(t, "test.example.com", "http://"+to, intercepting(t, roots))
	if sp.inward {
		client = dialRaw(t, s.ingress.URL)
	} else {
		client = s.connect(t, to)
	}
	if sp.secure {
		client = tls.Client(client.(*rawConn).Conn, &tls.Config{RootCAs: s.roots(t), ServerName: "127.0.0.1"})
	}
	if sp.upgraded {
		if _, err := io.WriteString(client, "GET /chat HTTP/1.1\r\nHost: "+to+"\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReaderSize(client, 16)
		if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols || r.Buffered() > 0 {
			t.Fatalf("answer = %v, %v", resp, err)
		}
	}
	server = receive(t, far, "the server's end")
	if !sp.silent {
		exchangeWords(t, client, server)
	}
	return client, server
}

// exchangeWords has each end hear the other one.
func exchangeWords(t *testing.T, ends ...net.Conn) {
	t.Helper()
	for i, from := range ends {
		const word = "hello, I speak no HTTP\n"
		if _, err := io.WriteString(from, word); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(word))
		if n, err := io.ReadFull(ends[1-i], got); err != nil || string(got) != word {
			t.Fatalf("heard %q, %v, want %q", got[:n], err, word)
		}
	}
}

// breakOff ends c as a process that is killed does which has something to read.
func breakOff(t *testing.T, c net.Conn) {
	t.Helper()
	if raw, ok := c.(*rawConn); ok {
		c = raw.Conn
	}
	tcp := beneath(c).(*net.TCPConn)
	if err := tcp.SetLinger(0); err != nil {
		t.Error(err)
	}
	_ = tcp.Close()
}

// A side that breaks off does so for the other one, which may not take what it has
// heard for all that there was to say.
func TestBrokenOff(t *testing.T) {
	for _, sp := range []speech{
		{name: "a tunnel"},
		{name: "a tunnel in which nobody has spoken", silent: true},
		{name: "an upgrade", upgraded: true},
		{name: "an upgrade into the host", upgraded: true, inward: true},
		{name: "an upgrade in TLS", upgraded: true, secure: true},
	} {
		for _, who := range []string{"client", "server"} {
			t.Run(sp.name+"/"+who, func(t *testing.T) {
				client, server := sp.open(t)
				breaks, hears := client, server
				if who == "server" {
					breaks, hears = server, client
				}
				said := ""
				if !sp.silent {
					said = "and then"
					if _, err := io.WriteString(breaks, said); err != nil {
						t.Fatal(err)
					}
					if _, err := io.ReadFull(hears, make([]byte, len(said))); err != nil {
						t.Fatal(err)
					}
				}
				breakOff(t, breaks)
				b, err := io.ReadAll(hears)
				if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
					t.Errorf("the other side hears %q, %v, want a reset", b, err)
				}
			})
		}
	}
}

// tardy is a connection from which is read once for each time that it may be.
type tardy struct {
	net.Conn
	may <-chan struct{}
}

func (c tardy) Read(b []byte) (int, error) {
	<-c.may
	return c.Conn.Read(b)
}

// tcpPair returns both ends of a connection.
func tcpPair(t *testing.T) (near *rawConn, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near = dialRaw(t, ln.Addr().String())
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

// What a server said before it was gone is still heard, also when it was found to be
// gone by a client that goes on to speak.
func TestLastWords(t *testing.T) {
	if !canPeek {
		t.Skip("here nobody can tell that there is something left")
	}
	client, clientSide := tcpPair(t)
	upstream, server := tcpPair(t)
	may := make(chan struct{})
	j := &joint{
		client:   joined{ReadWriteCloser: clientSide, conn: clientSide},
		upstream: joined{ReadWriteCloser: tardy{upstream.Conn, may}, conn: upstream.Conn},
	}
	over := make(chan struct{})
	go func() { j.pass(); close(over) }() // ends when the server is gone
	const words = "all that there is to say"
	if _, err := io.WriteString(server, words); err != nil {
		t.Fatal(err)
	}
	breakOff(t, server)
	eventually(t, "the server to be found gone", func() bool {
		_, _ = io.WriteString(client.Conn, "more")
		return j.broken.Load()
	})
	select {
	case may <- struct{}{}:
	case <-time.After(patience):
		t.Fatal("nobody listens to the server any more")
	}
	heard := make([]byte, len(words))
	if n, err := io.ReadFull(client, heard); err != nil || string(heard) != words {
		t.Errorf("the client hears %q, %v, want %q", heard[:n], err, words)
	}
	close(may)
	if b, err := io.ReadAll(client); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
		t.Errorf("then the client hears %q, %v, want a reset", b, err)
	}
	receive(t, over, "both ways to end")
}

// A side that has said the half of something, when the other one is gone, is not
// waited for without end.
func TestHalfWords(t *testing.T) {
	if !canPeek {
		t.Skip("here nobody can tell that there is something left")
	}
	secured, _ := secureServer(t, http.NotFound)
	clientEnd, clientSide := tcpPair(t)
	upstream, server := tcpPair(t)
	inTLS := tls.Server(clientSide, &tls.Config{Certificates: secured.TLS.Certificates, MinVersion: tls.VersionTLS12})
	shaken := make(chan error, 1)
	go func() { shaken <- inTLS.Handshake() }() // ends with the test's connections
	roots := x509.NewCertPool()
	roots.AddCert(secured.Certificate())
	if err := tls.Client(clientEnd.Conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}).Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, shaken, "the handshake"); err != nil {
		t.Fatal(err)
	}
	may := make(chan struct{})
	j := &joint{
		client:   joined{ReadWriteCloser: tlsTardy{inTLS, may}, conn: inTLS},
		upstream: joined{ReadWriteCloser: upstream.Conn, conn: upstream.Conn},
		patience: time.Millisecond,
	}
	over := make(chan struct{})
	go func() { j.pass(); close(over) }()                                       // ends with the client's patience
	if _, err := clientEnd.Write([]byte{23, 3, 3, 1, 0, 1, 2, 3}); err != nil { // of 256 bytes, the first three
		t.Fatal(err)
	}
	eventually(t, "the half to be there", func() bool { return !waits(inTLS) })
	breakOff(t, server)
	eventually(t, "the server to be found gone", j.broken.Load)
	close(may)
	receive(t, over, "both ways to end")
}

// tlsTardy is a connection in TLS that is not read from before it may be.
type tlsTardy struct {
	*tls.Conn
	may <-chan struct{}
}

func (c tlsTardy) Read(b []byte) (int, error) {
	<-c.may
	return c.Conn.Read(b)
}

// An answer of unknown length that breaks off ends with a reset for a client of
// HTTP/1.0, which knows no other sign of it.
func TestBrokenAnswer10(t *testing.T) {
	broken := make(chan bool)
	to := talker(t, func(c *rawConn) {
		if _, err := http.ReadRequest(c.Reader); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(c.Conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsome")
		if <-broken {
			breakOff(t, c)
		}
	})
	s := newSidecar(t, "test.example.com", "http://"+to)
	for _, addr := range []string{s.ingress.URL, s.egress.URL} {
		for _, breaks := range []bool{true, false} {
			c := dialRaw(t, addr)
			c.send("GET http://" + to + "/ HTTP/1.0\nHost: " + to + "\n\n")
			resp := c.answer(http.MethodGet)
			if _, err := io.ReadFull(resp.Body, make([]byte, len("some"))); err != nil {
				t.Fatal(err)
			}
			broken <- breaks
			b, err := io.ReadAll(resp.Body)
			if len(b) > 0 || (err != nil) != breaks || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("broken off %v: the end is %q, %v", breaks, b, err)
			}
		}
	}
}
