package proxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processesKnown says that this system tells who holds a connection.
const processesKnown = true

// procfs is the process table of Linux.
type procfs struct{ root string }

// stat is where a process stands.
type stat struct {
	process
	parent int
}

var errStat = errors.New("not the stat of a process")

func (fs procfs) path(pid int, name string) string {
	return filepath.Join(fs.root, strconv.Itoa(pid), name)
}

func (procfs) self() int { return os.Getpid() }

// stat reads who a process is now.
func (fs procfs) stat(pid int) (stat, error) {
	text, err := os.ReadFile(fs.path(pid, "stat"))
	if err != nil {
		return stat{}, err
	}
	// The name may hold anything, parentheses too.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const parent, start = 1, 19 // of those behind the name
	if len(fields) <= start {
		return stat{}, errStat
	}
	s := stat{process: process{pid: pid}}
	if s.parent, err = strconv.Atoi(string(fields[parent])); err == nil {
		s.start, err = strconv.ParseUint(string(fields[start]), 10, 64)
	}
	return s, err
}

// descends reports whether pid is above's, or one below it.
func (fs procfs) descends(pid, above int) bool {
	for i := 0; i < maxForebears && pid > 1; i++ {
		if pid == above {
			return true
		}
		s, err := fs.stat(pid)
		if err != nil {
			return false
		}
		pid = s.parent
	}
	return false
}

// environ returns the environment that a process was started with, or nothing
// if it may not be read.
func (fs procfs) environ(pid int) []string {
	const longest = 1 << 20
	f, err := os.Open(fs.path(pid, "environ"))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, longest)) // what can be read
	return strings.Split(string(text), "\x00")
}

// holds reports whether a process still holds a socket.
func (fs procfs) holds(h holder, inode uint64) bool {
	link, err := os.Readlink(fs.path(h.pid, filepath.Join("fd", h.fd)))
	got, ok := socketInode(link)
	return err == nil && ok && got == inode
}

func socketInode(link string) (uint64, bool) {
	digits, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 64)
	return n, err == nil
}

// ticks returns the time since the system's start in the unit of process.start.
func (fs procfs) ticks() uint64 {
	text, err := os.ReadFile(filepath.Join(fs.root, "uptime"))
	seconds, _, _ := strings.Cut(string(text), " ")
	whole, hundredths, _ := strings.Cut(seconds, ".")
	n, bad := strconv.ParseUint(whole+hundredths, 10, 64)
	if err != nil || bad != nil || len(hundredths) != 2 {
		return 1<<64 - 1 // nobody was started later
	}
	return n
}

// snapshot reads which process holds which socket, or nothing if that is not
// done by the deadline.
func (fs procfs) snapshot(deadline time.Time) *snapshot {
	shot := &snapshot{sockets: map[pair]uint64{}, holders: map[uint64][]holder{}}
	for _, table := range []string{"tcp", "tcp6"} {
		if !fs.readSockets(table, shot, deadline) {
			return nil
		}
	}
	dir, err := os.Open(fs.root)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // as far as it gets
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if time.Now().After(deadline) {
			return nil
		}
		fs.readHolder(pid, shot)
	}
	return shot
}

func (fs procfs) readHolder(pid int, shot *snapshot) {
	path := fs.path(pid, "fd")
	dir, err := os.Open(path)
	if err != nil {
		return // it has ended, or is not ours to read
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // it may end while it is read
	for _, fd := range names {
		link, err := os.Readlink(filepath.Join(path, fd))
		if inode, ok := socketInode(link); err == nil && ok {
			shot.holders[inode] = append(shot.holders[inode], holder{pid, fd})
		}
	}
}

// readSockets reads the connections that begin and end on this machine. It
// reports false if it takes too long.
func (fs procfs) readSockets(table string, shot *snapshot, deadline time.Time) bool {
	f, err := os.Open(filepath.Join(fs.root, "net", table))
	if err != nil {
		return true // without IPv6 there is no such table
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 0; lines.Scan(); n++ {
		if n%1024 == 0 && time.Now().After(deadline) {
			return false
		}
		const local, remote, inode = 1, 2, 9
		fields := bytes.Fields(lines.Bytes())
		if len(fields) <= inode {
			continue
		}
		l, ok := parseSocketAddr(fields[local])
		if !ok || !l.Addr().IsLoopback() {
			continue
		}
		r, ok := parseSocketAddr(fields[remote])
		if i, err := strconv.ParseUint(string(fields[inode]), 10, 64); ok && err == nil && i != 0 {
			shot.sockets[pair{l, r}] = i
		}
	}
	return true
}

// parseSocketAddr reads an address as the kernel writes it: words in its own
// byte order, as hex.
func parseSocketAddr(text []byte) (netip.AddrPort, bool) {
	host, port, ok := bytes.Cut(text, []byte(":"))
	var b [16]byte
	if len(host) != 8 && len(host) != 32 {
		return netip.AddrPort{}, false
	}
	n, err := hex.Decode(b[:], host)
	p, bad := strconv.ParseUint(string(port), 16, 16)
	if !ok || err != nil || bad != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i < n; i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, _ := netip.AddrFromSlice(b[:n]) // of one of the two lengths
	return netip.AddrPortFrom(addr.Unmap(), uint16(p)), true
}
