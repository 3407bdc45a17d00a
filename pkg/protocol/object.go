package protocol

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// object is a JSON object while it is written, field by field, exactly as encoding/json would.
// Every call and every result is written so: finding out what fields they have takes encoding/json
// three times as long.
type object struct {
	body []byte
	err  error // the first one
}

// objectRoom is about what the fields of a call or of a result need beside the payload or the
// value.
const objectRoom = 512

// newObject begins an object with its type and version. It gets a last field of so many bytes.
func newObject(kind string, last int) *object {
	o := &object{body: append(make([]byte, 0, objectRoom+last), '{')}
	o.text("type", kind)
	o.integer("version", Version)
	return o
}

// end adds a last field, whose value is JSON already, unless that is empty, and returns the whole.
func (o *object) end(name string, value json.RawMessage) ([]byte, error) {
	if len(value) > 0 {
		o.name(name)
		o.body = append(o.body, value...)
	}
	return append(o.body, '}'), o.err
}

func (o *object) name(name string) {
	if o.body[len(o.body)-1] != '{' {
		o.body = append(o.body, ',')
	}
	o.body = append(append(append(o.body, '"'), name...), `":`...)
}

func (o *object) text(name, value string) {
	o.name(name)
	if !plainText(value) {
		o.marshal(value)
		return
	}
	o.body = append(append(append(o.body, '"'), value...), '"')
}

func (o *object) integer(name string, value int64) {
	o.name(name)
	o.body = strconv.AppendInt(o.body, value, 10)
}

func (o *object) number(name string, value float64) {
	o.name(name)
	if size := math.Abs(value); size != 0 && !(size >= 1e-6 && size < 1e21) {
		o.marshal(value)
		return
	}
	o.body = strconv.AppendFloat(o.body, value, 'f', -1, 64)
}

func (o *object) time(name string, value time.Time) {
	o.name(name)
	body, err := value.AppendText(append(o.body, '"'))
	if err != nil {
		o.fail(err)
		return
	}
	o.body = body
	o.body = append(o.body, '"')
}

// textIfAny writes a string that is not empty.
func (o *object) textIfAny(name, value string) {
	if value != "" {
		o.text(name, value)
	}
}

// integerIfAny writes a number that is not 0.
func (o *object) integerIfAny(name string, value int64) {
	if value != 0 {
		o.integer(name, value)
	}
}

// uses writes a list of uses.
func (o *object) uses(name string, uses []Use) {
	if len(uses) == 0 {
		o.value(name, uses)
		return
	}
	o.name(name)
	before := byte('[')
	for _, use := range uses {
		o.body = append(o.body, before, '{')
		o.text("key", string(use.Key))
		o.text("access", string(use.Access))
		o.body, before = append(o.body, '}'), ','
	}
	o.body = append(o.body, ']')
}

// value writes anything else.
func (o *object) value(name string, value any) {
	o.name(name)
	o.marshal(value)
}

func (o *object) marshal(value any) {
	body, err := json.Marshal(value)
	o.body = append(o.body, body...)
	o.fail(err)
}

func (o *object) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

// plainText reports whether a string is JSON as it is, between quotes.
func plainText(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}
