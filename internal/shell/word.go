package shell

import "strings"

// word reads a word; it is empty, and nothing is read, where none begins.
func (p *parser) word() (Word, error) {
	start := p.pos
	var text strings.Builder
	word := Word{Known: true}
	brace := false
	unknown := func(many bool) { word.Known, word.Many = false, word.Many || many }
read:
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case strings.IndexByte(" \t\n;&|)<>", c) >= 0:
			break read
		case c == '(':
			return word, p.fail("a parenthesis behind a word")
		case c == '`':
			return word, p.fail("write $(...) for backquotes")
		case c >= 0x80:
			return word, p.fail("put quotes around text that is not ASCII")
		case c == '\'':
			end := strings.IndexByte(p.text[p.pos+1:], '\'')
			if end < 0 || len(p.documents) > 0 && strings.Contains(p.text[p.pos:p.pos+1+end], "\n") {
				return word, p.fail("a quote has no end on this line")
			}
			text.WriteString(p.text[p.pos+1 : p.pos+1+end])
			p.pos += end + 2
			continue
		case c == '"':
			p.pos++
			known, many, err := p.quoted(&text)
			if err != nil {
				return word, err
			}
			if !known {
				unknown(many)
			}
			continue
		case c == '$':
			many, _, err := p.expansion(false)
			if err != nil {
				return word, err
			}
			unknown(many)
			continue
		case c == '\\':
			if next := p.at(1); next < ' ' || next >= 0x80 {
				return word, p.fail("a backslash in a word before the end of the line")
			}
			p.pos++
			text.WriteByte(p.text[p.pos])
		case c == '*', c == '?', c == '[':
			unknown(true)
		case c == '~':
			unknown(false)
		default:
			if brace = brace || c == '{'; brace && (c == ',' || c == '.') {
				unknown(true)
			}
			text.WriteByte(c)
		}
		p.pos++
	}
	written := p.text[start:p.pos]
	if next := p.at(0); (next == '<' || next == '>') && strings.HasSuffix(written, "}") {
		return word, p.fail("a redirection behind a brace")
	}
	if word.Text = text.String(); !word.Known {
		word.Text = written
	}
	if written == "[" { // the program, not a glob
		word = Word{Text: "[", Known: true}
	}
	return word, nil
}

// quoted reads text in double quotes up to its end.
func (p *parser) quoted(text *strings.Builder) (known, many bool, err error) {
	known = true
	for p.pos < len(p.text) {
		c, next := p.at(0), p.at(1)
		switch {
		case c == '"':
			p.pos++
			return known, many, nil
		case c == '`':
			return false, false, p.fail("write $(...) for backquotes")
		case c == '\\' && (next == '\n' || p.pos > 0 && p.text[p.pos-1] >= 0x80):
			return false, false, p.fail("a backslash in double quotes at the end of a line, or behind text that is not ASCII")
		case c == '\\' && next != 0 && strings.IndexByte("$`\"\\", next) >= 0:
			text.WriteByte(next)
			p.pos += 2
		case c == '\n' && len(p.documents) > 0:
			return false, false, p.fail("a quote has no end on the line of a here document")
		case c == '$':
			severalWords, literal, err := p.expansion(true)
			if err != nil {
				return false, false, err
			}
			if literal {
				text.WriteByte('$')
			}
			known, many = known && literal, many || severalWords
		default:
			text.WriteByte(c)
			p.pos++
		}
	}
	return false, false, p.fail("a quote has no end")
}

// expansion reads what begins with a dollar sign: $name, ${name}, $1 and its like, or a command
// substitution. Many says that its value may be several words, and literal that it is text.
func (p *parser) expansion(quoted bool) (many, literal bool, err error) {
	switch next := p.at(1); {
	case next == '(' && p.at(2) == '(':
		return false, false, p.fail("arithmetic in $((")
	case next == '(':
		if p.depth+p.within >= maxNesting {
			return false, false, p.fail("more than %d substitutions in each other", maxNesting)
		}
		p.pos += 2
		p.within++
		err := p.list(true)
		p.within--
		return !quoted, false, err
	case next == '{':
		found := p.find(braced)
		if found == "" {
			return false, false, p.fail("only ${name} in braces")
		}
		p.pos += len(found)
		return !quoted || found == "${@}", false, nil
	case next != 0 && strings.IndexByte("@*#?$!-0123456789", next) >= 0:
		p.pos += 2
		isNumber := next == '#' || next == '?' || next == '$'
		return !quoted && !isNumber || next == '@', false, nil
	case quoted && next != 0 && strings.IndexByte("\" |/),.:;%^", next) >= 0:
		p.pos++
		return false, true, nil
	}
	p.pos++
	name := p.find(variable)
	if name == "" {
		return false, false, p.fail("a dollar sign before %q; put single quotes around it", p.at(0))
	}
	p.pos += len(name)
	return !quoted, false, nil
}
