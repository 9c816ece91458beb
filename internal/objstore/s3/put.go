package s3

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/minio/minio-go/v7"
)

const (
	crcName     = "Levee-Crc32c" // user metadata: the checksum of the whole object, eight hex digits
	sumHeader   = "x-amz-checksum-crc32c"
	sumAlgo     = "x-amz-checksum-algorithm"
	abortWithin = 30 * time.Second
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// PutIfAbsent implements objstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (objstore.Info, error) {
	if err := objstore.CheckPut(key, src); err != nil {
		return objstore.Info{}, err
	}
	return s.put(ctx, objstore.OpPutIfAbsent, key, src, func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") })
}

// PutIfMatch implements objstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, version objstore.Version, src objstore.Source) (objstore.Info, error) {
	if err := objstore.CheckMatch(key, version, src); err != nil {
		return objstore.Info{}, err
	}
	return s.put(ctx, objstore.OpPutIfMatch, key, src, func(o *minio.PutObjectOptions) { o.SetMatchETag(string(version)) })
}

func (s *Store) put(ctx context.Context, op objstore.Op, key string, src objstore.Source, condition func(*minio.PutObjectOptions)) (objstore.Info, error) {
	if ctx.Err() != nil {
		return objstore.Info{}, objstore.Ended(ctx, op, key)
	}
	var etag string
	var err error
	if src.Size() <= s.part {
		etag, err = s.putWhole(ctx, op, key, src, condition)
	} else {
		etag, err = s.putParts(ctx, op, key, src, condition)
	}
	if err != nil {
		return objstore.Info{}, err
	}
	return objstore.Info{
		Key: key, Size: src.Size(), Version: objstore.Version(etag), CRC32C: src.CRC32C(), HasCRC: true, Modified: time.Now(),
	}, nil
}

func (s *Store) options(src objstore.Source) minio.PutObjectOptions {
	return minio.PutObjectOptions{
		UserMetadata:         map[string]string{crcName: fmt.Sprintf("%08x", src.CRC32C())},
		DisableContentSha256: s.secure, // TLS and the checksum protect the bytes; in the clear each chunk is signed
	}
}

// putWhole stores in one request. The server compares the checksum before it answers.
func (s *Store) putWhole(ctx context.Context, op objstore.Op, key string, src objstore.Source, condition func(*minio.PutObjectOptions)) (string, error) {
	opts := s.options(src)
	opts.UserMetadata[sumHeader] = encodeSum(src.CRC32C())
	condition(&opts)
	up := src.Open(ctx)
	sum := ""
	if src.Size() == 0 { // else the library signs a last chunk behind nothing, on which a server that refuses closes the door
		sum, opts.DisableContentSha256 = emptySHA256, true
	}
	info, err := s.core.PutObject(ctx, s.bucket, key, up, src.Size(), "", sum, opts)
	sent, broken := up.Stop()
	switch {
	case broken != nil:
		return "", fmt.Errorf("%s %s: %w", op, key, broken)
	case err != nil:
		return "", failure(op, key, sent, err)
	case info.ETag == "":
		return "", objstore.Failure{Op: op, Key: key, Status: http.StatusOK, Sent: true, Cause: errNoETag}.Err()
	}
	return info.ETag, nil
}

// putParts stores in parts. Only the last request makes an object of them, under the condition; every earlier failure
// takes them back.
func (s *Store) putParts(ctx context.Context, op objstore.Op, key string, src objstore.Source, condition func(*minio.PutObjectOptions)) (string, error) {
	if op == objstore.OpPutIfAbsent { // not to send all of it for nothing
		if _, err := s.Head(ctx, key); err == nil {
			return "", fmt.Errorf("%s %s: %w", op, key, objstore.ErrExists)
		}
	}
	opts := s.options(src)
	opts.UserMetadata[sumAlgo] = "CRC32C"
	id, err := s.core.NewMultipartUpload(ctx, s.bucket, key, opts)
	if err != nil {
		return "", failure(op, key, false, err)
	}
	parts, err := s.sendParts(ctx, op, key, id, src)
	if err != nil {
		s.abort(ctx, key, id)
		return "", fmt.Errorf("%s %s: %w", op, key, err)
	}
	if ctx.Err() != nil {
		s.abort(ctx, key, id)
		return "", objstore.Ended(ctx, op, key)
	}
	var last minio.PutObjectOptions
	condition(&last)
	info, err := s.core.CompleteMultipartUpload(ctx, s.bucket, key, id, parts, last)
	if err == nil && info.ETag == "" {
		err = errNoETag
	}
	if err != nil {
		err = failure(op, key, true, err)
		if !isUnknown(err) { // otherwise it may yet be made an object
			s.abort(ctx, key, id)
		}
		return "", err
	}
	return info.ETag, nil
}

func (s *Store) sendParts(ctx context.Context, op objstore.Op, key, id string, src objstore.Source) ([]minio.CompletePart, error) {
	size := s.part
	for src.Size() > size*maxParts {
		size *= 2
	}
	var mu sync.Mutex
	var parts []minio.CompletePart // guarded by mu
	err := objstore.SendPieces(ctx, src, size, parallel, func(ctx context.Context, n int, up *objstore.Upload) error {
		sum := encodeSum(up.CRC32C())
		part, err := s.core.PutObjectPart(ctx, s.bucket, key, id, n+1, up, up.Size(), minio.PutObjectPartOptions{
			CustomHeader:         http.Header{http.CanonicalHeaderKey(sumHeader): {sum}},
			DisableContentSha256: s.secure,
		})
		if err != nil {
			return failure(op, key, false, err)
		}
		done := minio.CompletePart{PartNumber: n + 1, ETag: part.ETag, ChecksumCRC32C: part.ChecksumCRC32C}
		mu.Lock()
		defer mu.Unlock()
		parts = append(parts, done)
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	slices.SortFunc(parts, func(a, b minio.CompletePart) int { return a.PartNumber - b.PartNumber })
	return parts, err
}

// abort gives the parts back, also where the caller has given up. What it cannot reach is a rule's of the bucket to remove.
func (s *Store) abort(ctx context.Context, key, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWithin)
	defer cancel()
	_ = s.core.AbortMultipartUpload(ctx, s.bucket, key, id)
}

func encodeSum(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// crcOf reads the checksum that a put left with its object.
func crcOf(meta map[string]string) (crc uint32, ok bool) {
	n, err := strconv.ParseUint(meta[crcName], 16, 32)
	return uint32(n), err == nil
}
