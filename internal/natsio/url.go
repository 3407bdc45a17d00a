package natsio

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// redacted stands for whatever may be a secret.
const redacted = "xxxxx"

// ErrURL is wrapped by the error of [Connect] for what is no list of server URLs.
var ErrURL = errors.New("not a server URL, which is nats://host:port or tls://host:port (or ws://, wss://), several separated by commas")

// known reports whether the client knows the scheme of a URL; it takes any other for nats.
func known(part string) bool {
	scheme, _, found := strings.Cut(part, "://")
	return !found || slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme)
}

// Redact returns the URL list without user names, passwords and tokens. Of what is
// no URL it shows only what stands behind the last "@".
func Redact(list string) string {
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		out = append(out, redact(strings.TrimSpace(part)))
	}
	return strings.Join(out, ",")
}

func redact(part string) string {
	scheme, rest, found := strings.Cut(part, "://")
	if !found {
		scheme, rest = "", part
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		return scheme + redacted + rest[at:]
	}
	if part != "" && parse(part) != nil {
		return redacted // half a URL, perhaps, with half a password
	}
	return part
}

// CheckURLs finds what is no URL before the client does, whose error would quote it. Errors wrap
// [ErrURL].
func CheckURLs(list string) error {
	fault := ErrURL
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if fault = parse(part); fault == nil && !known(part) {
			fault = ErrURL
		}
		if fault != nil {
			break
		}
	}
	if fault != nil {
		return fmt.Errorf("connect to NATS at %q: %w", Redact(list), fault)
	}
	return nil
}

// parse checks one URL as the client reads it: without a scheme it is nats://. The
// error says nothing, because what [url.Parse] says quotes its input.
func parse(part string) error {
	if !strings.Contains(part, "://") {
		part = "nats://" + part
	}
	u, err := url.Parse(part)
	if err != nil || u.Hostname() == "" {
		return ErrURL
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return ErrURL
		}
	}
	return nil
}
