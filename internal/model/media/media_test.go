package media_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/model/media"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// webp is a picture of one pixel.
const webp = "RIFF\x1a\x00\x00\x00WEBPVP8L\r\x00\x00\x00/\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"

func TestPicture_IsWhatDecodes(t *testing.T) {
	t.Parallel()
	var p, j, g bytes.Buffer
	picture := image.NewRGBA(image.Rect(0, 0, 40, 40))
	require.NoError(t, png.Encode(&p, picture))
	require.NoError(t, jpeg.Encode(&j, picture, nil))
	require.NoError(t, gif.Encode(&g, picture, nil))
	for want, data := range map[string][]byte{"image/png": p.Bytes(), "image/jpeg": j.Bytes(), "image/gif": g.Bytes(), "image/webp": []byte(webp)} {
		got, err := media.Picture(data)
		require.NoError(t, err, want)
		require.Equal(t, want, got)
		_, err = media.Picture(data[:len(data)*2/3])
		require.Error(t, err, "half of %s", want)
		_, err = media.Picture(data[:min(len(data), 12)])
		require.Error(t, err, "the beginning of %s", want)
	}
	_, err := media.Picture([]byte("\x89PNG\r\n\x1a\n"))
	require.Error(t, err)
	animated := "RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x02\x00\x00\x00\x07\x00\x00\x07\x00\x00"
	got, err := media.Picture([]byte(animated))
	require.NoError(t, err)
	require.Equal(t, "image/webp", got)
}

// A small file may have so many pixels that no memory holds them.
func TestPicture_OfManyPixels(t *testing.T) {
	t.Parallel()
	header := binary.BigEndian.AppendUint32([]byte("IHDR"), 1<<16)
	header = append(binary.BigEndian.AppendUint32(header, 1<<16), 8, 0, 0, 0, 0)
	data := binary.BigEndian.AppendUint32([]byte("\x89PNG\r\n\x1a\n"), uint32(len(header)-4))
	data = binary.BigEndian.AppendUint32(append(data, header...), crc32.ChecksumIEEE(header))
	data = append(data, "\x00\x00\x00\x01IDAT\x00\x00\x00\x00\x00"...)
	got, err := media.Picture(data)
	require.NoError(t, err, "its pixels are not decoded")
	require.Equal(t, "image/png", got)
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return data
}

func TestPDFText_PageByPage(t *testing.T) {
	t.Parallel()
	const most = 1 << 10
	text, err := media.PDFText(t.Context(), read(t, "pages.pdf"), most)
	require.NoError(t, err)
	require.Equal(t, "[Page 1 of 3]\nThe first page.\n\n[Page 2 of 3]\n\n\n[Page 3 of 3]\nThe third page.", text)
	for name, test := range map[string]struct {
		data []byte
		most int
		want string
	}{
		"no document": {[]byte("%PDF-1.7"), most, "cannot be read"},
		"a scan":      {read(t, "empty.pdf"), most, "no text: its pages are pictures"},
		"too much":    {read(t, "pages.pdf"), 40, "more than 40 bytes of text"},
		"noise":       {[]byte("%PDF-1.7\n" + strings.Repeat("1 0 obj << /Type /Pages /Kids [1 0 R] /Count 9 >> endobj\n", 100)), most, "it "},
	} {
		_, err := media.PDFText(t.Context(), test.data, test.most)
		require.ErrorContains(t, err, test.want, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = media.PDFText(ctx, read(t, "pages.pdf"), most)
	require.ErrorIs(t, err, context.Canceled)
}
