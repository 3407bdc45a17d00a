package files

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/encoding/ianaindex"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/unicode"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// form is how a file stores its text. The zero value is UTF-8 without a byte order mark, and also
// stands for content that is no text.
type form struct {
	name  string            // of the encoding, as in "UTF-16LE"; "" is UTF-8
	mark  string            // the byte order mark, which is no part of the text
	codec encoding.Encoding // nil for UTF-8
}

// utf8Mark is the byte order mark in UTF-8.
const utf8Mark = "\uFEFF"

// marked are the forms with a byte order mark.
var marked = []form{ //nolint:gochecknoglobals // a constant table
	{mark: utf8Mark},
	{name: "UTF-16LE", mark: "\xFF\xFE", codec: unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM)},
	{name: "UTF-16BE", mark: "\xFE\xFF", codec: unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM)},
}

// decode returns the text of a file, in UTF-8 and without a byte order mark, and its form. The text
// with that form is the content again, to the byte. ok is false for content that is no text; text
// is the content then.
func decode(content []byte) (text []byte, as form, ok bool) {
	for _, f := range marked {
		if bytes.HasPrefix(content, []byte(f.mark)) {
			return f.decode(content)
		}
	}
	switch {
	case bytes.IndexByte(content, 0) >= 0:
		return content, form{}, false
	case utf8.Valid(content):
		return content, form{}, true
	default:
		return guess(content).decode(content)
	}
}

// decodeAs is the function decode for content whose encoding has a name: that of IANA, or one that
// programs use for it. name is that of the file.
func decodeAs(name string, content []byte, encodingName string) (text []byte, as form, err error) {
	label := strings.ReplaceAll(strings.ToLower(encodingName), "_", "-")
	ok := false
	switch label {
	case "utf-8", "utf8", "utf-8-sig":
		if text = bytes.TrimPrefix(content, []byte(utf8Mark)); len(text) < len(content) {
			as.mark = utf8Mark
		}
		ok = utf8.Valid(text)
	case "utf-16", "utf16":
		if text, as, ok = decode(content); as.codec == nil || as.mark == "" {
			text, as, ok = form{name: "UTF-16LE", codec: marked[1].codec}.decode(content)
		}
	default:
		codec, known := codecOf(label)
		if !known {
			return nil, form{}, protocol.Errorf(protocol.CodeInvalidArguments,
				"there is no encoding %.100q; use a name such as iso-8859-1, or read the bytes", encodingName)
		}
		text, as, ok = form{name: label, codec: codec}.decode(content)
	}
	if !ok {
		return nil, form{}, protocol.Errorf(protocol.CodeToolFailed, "%q is not text in the encoding %.100q", name, encodingName)
	}
	return text, as, nil
}

// codecOf returns the encoding with a name in lower case.
func codecOf(label string) (encoding.Encoding, bool) {
	switch label {
	case "ascii":
		label = "us-ascii"
	case "latin-1":
		label = "iso-8859-1"
	}
	if codec, err := ianaindex.IANA.Encoding(label); err == nil && codec != nil {
		return codec, true
	}
	codec, err := htmlindex.Get(label)
	return codec, err == nil
}

// decode is the function decode for content that has this form, if it is text.
func (f form) decode(content []byte) (text []byte, as form, ok bool) {
	text = content[len(f.mark):]
	if f.codec != nil {
		decoded, err := f.codec.NewDecoder().Bytes(text)
		if err != nil {
			return content, form{}, false
		}
		text = decoded
		if again, err := f.encode(text); err != nil || !bytes.Equal(again, content) {
			return content, form{}, false
		}
	}
	if binary(text) {
		return content, form{}, false
	}
	return text, f, true
}

// encode returns the content of a file with a text. A text with characters that the encoding lacks
// is a fault.
func (f form) encode(text []byte) ([]byte, error) {
	if f.codec != nil {
		encoded, err := f.codec.NewEncoder().Bytes(text)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArguments,
				"the file is in %s, and the new text has characters that this encoding lacks; nothing was changed. Use other characters, or convert the file first, as with iconv", f.name)
		}
		text = encoded
	}
	if f.mark == "" {
		return text, nil
	}
	return append([]byte(f.mark), text...), nil
}

// guess finds the encoding of bytes that are not UTF-8 and have no NUL among them. What looks like
// none of those that are known gets the zero form, and so does UTF-8 with some bad bytes.
func guess(content []byte) form {
	switch {
	case bytes.ContainsFunc(content, isControl), mostlyUTF8(content):
		return form{}
	case likeGBK(content):
		return form{name: "GBK", codec: simplifiedchinese.GBK}
	case !likeWestern(content):
		return form{}
	}
	western := form{name: "ISO-8859-1", codec: charmap.ISO8859_1}
	for _, c := range content {
		switch {
		case c == 0x81, c == 0x8D, c == 0x8F, c == 0x90, c == 0x9D:
			return form{} // no character of either
		case c >= 0x80 && c < 0xA0:
			western = form{name: "Windows-1252", codec: charmap.Windows1252}
		}
	}
	return western
}

// isControl reports whether text has no such character. It sees bytes that are not UTF-8 as U+FFFD.
func isControl(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\v' && r != '\f' && r != '\r' && r != '\b' && r != '\x1b' || r == 0x7F
}

// mostlyUTF8 reports whether more characters beyond ASCII are UTF-8 than bytes are not.
func mostlyUTF8(content []byte) bool {
	good, bad := 0, 0
	for len(content) > 0 {
		r, size := utf8.DecodeRune(content)
		switch {
		case r == utf8.RuneError && size == 1:
			bad++
		case size > 1:
			good++
		}
		content = content[size:]
	}
	return good > bad
}

// likeGBK reports whether the bytes beyond ASCII are pairs, and most of them common Chinese
// characters or punctuation. A pair that is a part of an ASCII word is more likely two letters.
func likeGBK(content []byte) bool {
	common, rare := 0, 0
	for i := 0; i < len(content); i++ {
		if content[i] < 0x80 {
			continue
		}
		if i+1 == len(content) {
			return false
		}
		lead, trail := content[i], content[i+1]
		usual := trail >= 0xA1 && (lead >= 0xA1 && lead <= 0xA3 || lead >= 0xB0 && lead <= 0xF7)
		switch {
		case lead == 0x80, lead == 0xFF, trail < 0x40, trail == 0x7F, trail == 0xFF:
			return false
		case !usual, i > 0 && isLetter(content[i-1]) && i+2 < len(content) && isLetter(content[i+2]):
			rare++
		default:
			common++
		}
		i++
	}
	return common > 0 && common >= 4*rare
}

// likeWestern reports whether most of the bytes beyond ASCII stand alone or in short runs, as in
// Western European languages.
func likeWestern(content []byte) bool {
	all, long, run := 0, 0, 0
	for i := 0; i <= len(content); i++ {
		if i < len(content) && content[i] >= 0x80 {
			run++
			continue
		}
		if all += run; run > 3 {
			long += run
		}
		run = 0
	}
	return all < len(content) && 2*long <= all
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// keepMark returns the content that makes text the new text of a file with a byte order mark: the
// mark, and the encoding that it names, stay. What is no text, or has a mark of its own, and every
// text for another file, is written as it is.
func keepMark(before, text []byte) ([]byte, error) {
	_, as, _ := decode(before)
	if as.mark == "" || binary(text) || bytes.HasPrefix(text, []byte(utf8Mark)) {
		return text, nil
	}
	return as.encode(text)
}

// lineEnds counts line ends in the pieces of a text.
type lineEnds struct {
	all, crlf int
	cr        bool // the last piece ended with a carriage return
}

func (e *lineEnds) take(piece []byte) {
	if len(piece) == 0 {
		return
	}
	e.all += bytes.Count(piece, []byte{'\n'})
	e.crlf += bytes.Count(piece, []byte("\r\n"))
	if e.cr && piece[0] == '\n' {
		e.crlf++
	}
	e.cr = piece[len(piece)-1] == '\r'
}

// String is "CRLF", "mixed", or "" where no line ends in CRLF.
func (e *lineEnds) String() string {
	switch e.crlf {
	case 0:
		return ""
	case e.all:
		return "CRLF"
	default:
		return "mixed"
	}
}
