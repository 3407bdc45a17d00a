package index

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
)

// seal hides numbers of a file: these count the calls of all tenants, and positions and cursors
// have them, which each tenant gets. The same number has the same text, and only the processes
// that have the file open know which number it is.
type seal struct{ block cipher.Block }

// sealText is how a sealed number is written.
var sealText = base32.HexEncoding.WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant

// readSeal reads the seal of a file, and makes it if there is none.
func readSeal(ctx context.Context, tx *sql.Tx) (seal, error) {
	text, err := meta(ctx, tx, keySeal)
	if err == nil && text == "" {
		key := make([]byte, aes.BlockSize)
		_, _ = rand.Read(key) // never fails
		text = hex.EncodeToString(key)
		err = setMeta(ctx, tx, keySeal, text)
	}
	key, decodeErr := hex.DecodeString(text)
	if err = errors.Join(err, decodeErr); err != nil {
		return seal{}, err
	}
	block, err := aes.NewCipher(key)
	return seal{block}, err
}

// text is a number as readers get it.
func (s seal) text(n int64) string {
	var body [aes.BlockSize]byte
	binary.BigEndian.PutUint64(body[aes.BlockSize-8:], uint64(n)) //nolint:gosec // back in number
	s.block.Encrypt(body[:], body[:])
	return sealText.EncodeToString(body[:])
}

// number reads text; it reports false for what another file has sealed, or none.
func (s seal) number(text string) (n int64, ok bool) {
	body, err := sealText.DecodeString(text)
	if err != nil || len(body) != aes.BlockSize {
		return 0, false
	}
	s.block.Decrypt(body, body)
	if binary.BigEndian.Uint64(body) != 0 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(body[aes.BlockSize-8:])), true //nolint:gosec // see text
}
