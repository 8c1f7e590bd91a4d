package redirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Set puts r in the place of the rules that are there, all at once. Where this
// system has no IPv6, or no such rules for it, IPv4 alone is redirected, and
// without says why. It takes the capability NET_ADMIN.
func (r Rules) Set() (without, err error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return errors.New("this system has no IPv6"), explain(r.replace(ip4))
	}
	if without = r.replace(ip4, ip6); without == nil {
		return nil, nil
	}
	return explain(without), explain(r.replace(ip4))
}

// Remove takes the rules away, if there are any.
func Remove() error {
	err := Rules{}.replace(ip4)
	if _, missing := os.Stat("/proc/net/if_inet6"); missing == nil {
		err = errors.Join(err, Rules{}.replace(ip6))
	}
	return explain(err)
}

// replace replaces the tables of families by what r comes to, in one transaction.
func (r Rules) replace(families ...family) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	for _, f := range families {
		t := &nftables.Table{Name: table, Family: familyOf(f)}
		c.AddTable(t) // or there may be none to delete
		c.DelTable(t)
		chains := r.chains(f)
		if len(chains) > 0 {
			c.AddTable(t)
		}
		for _, ch := range chains {
			hook := nftables.ChainHookPrerouting
			if ch.hook == "output" {
				hook = nftables.ChainHookOutput
			}
			policy := nftables.ChainPolicyAccept
			added := c.AddChain(&nftables.Chain{
				Name: ch.name, Table: t, Type: nftables.ChainTypeNAT,
				Hooknum: hook, Priority: nftables.ChainPriorityNATDest, Policy: &policy,
			})
			for _, rule := range ch.rules {
				c.AddRule(&nftables.Rule{Table: t, Chain: added, Exprs: rule.exprs(f)})
			}
		}
	}
	return c.Flush()
}

func familyOf(f family) nftables.TableFamily {
	if f == ip6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// exprs is the rule in the words of the kernel, as nft has them.
func (r rule) exprs(f family) []expr.Any {
	const register = 1
	is := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data} }
	meta := func(key expr.MetaKey, data []byte) []expr.Any {
		return []expr.Any{&expr.Meta{Key: key, Register: register}, is(data)}
	}
	tcp := meta(expr.MetaKeyL4PROTO, []byte{syscall.IPPROTO_TCP})
	var what []expr.Any
	switch {
	case r.uid != 0:
		what = meta(expr.MetaKeySKUID, binary.NativeEndian.AppendUint32(nil, r.uid))
	case r.in != "":
		what = meta(expr.MetaKeyIIFNAME, interfaceName(r.in))
	case r.out != "":
		what = meta(expr.MetaKeyOIFNAME, interfaceName(r.out))
	case r.to.IsValid():
		what = r.destination(f, register, is)
	case r.toPort != 0:
		what = append(tcp, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			is(binary.BigEndian.AppendUint16(nil, r.toPort)))
	default:
		what = tcp
	}
	if r.redirect == 0 {
		return append(what, &expr.Verdict{Kind: expr.VerdictReturn})
	}
	return append(what, &expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, r.redirect)},
		&expr.Redir{RegisterProtoMin: register})
}

// destination compares the first bits of the address in the header of IP.
func (r rule) destination(f family, register uint32, is func([]byte) expr.Any) []expr.Any {
	offset := uint32(16)
	if f == ip6 {
		offset = 24
	}
	addr := r.to.Addr().AsSlice()
	size := uint32(len(addr))
	mask := make([]byte, size)
	for bit := range r.to.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: size, Mask: mask, Xor: make([]byte, size)},
		is(addr),
	}
}

// interfaceName is a name as the kernel compares it: with all of its room.
func interfaceName(name string) []byte {
	b := make([]byte, 16)
	copy(b, name)
	return b
}

// explain says what can be done about err, if that is known.
func explain(err error) error {
	var errno syscall.Errno
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: %w", errRights, err)
	case errors.As(err, &errno) && slices.Contains([]syscall.Errno{syscall.EOPNOTSUPP, syscall.ENOENT, syscall.EPROTONOSUPPORT, syscall.EAFNOSUPPORT}, errno):
		return fmt.Errorf("%w: %w", errKernel, err)
	}
	return err
}
