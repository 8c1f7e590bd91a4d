package config

// The patterns, for the schema that is made from them.
const (
	URLPattern         = urlPattern
	DurationPattern    = durationPattern
	BytesPattern       = bytesPattern
	AddressPattern     = addressPattern
	HeaderPattern      = headerPattern
	CIDRPattern        = cidrPattern
	TimePattern        = timePattern
	HostPatternPattern = hostPattern
	OriginPattern      = originPattern
	RoutePattern       = routePattern
)

// Matches reports whether a pattern accepts s.
func Matches(pattern, s string) bool { return matches(pattern, s) }
