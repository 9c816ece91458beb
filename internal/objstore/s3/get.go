package s3

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/minio/minio-go/v7"
)

var errNoETag = errors.New("the answer names no entity tag")

func isUnknown(err error) bool { return errors.Is(err, objstore.ErrOutcomeUnknown) }

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	if err := objstore.CheckRange(key, off); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, objstore.Ended(ctx, objstore.OpGet, key)
	}
	if n == 0 { // which a range cannot say
		return objstore.Nothing(ctx, s, key, off)
	}
	var opts minio.GetObjectOptions
	asked := objstore.RangeHeader(off, n)
	if asked != "" {
		opts.Set("Range", asked)
	}
	r, stat, header, err := s.core.GetObject(ctx, s.bucket, key, opts)
	if err != nil {
		err = failure(objstore.OpGet, key, false, err)
		if errors.Is(err, objstore.ErrRange) {
			return objstore.Nothing(ctx, s, key, off)
		}
		return nil, err
	}
	info := infoOf(key, stat)
	length := info.Size
	if asked != "" {
		if length, info.Size, err = objstore.ContentRange(header.Get("Content-Range"), off, n); err != nil {
			_ = r.Close() // of an answer that is of no use
			return nil, objstore.Failure{Op: objstore.OpGet, Key: key, Status: http.StatusOK, Cause: err}.Err()
		}
	}
	return objstore.NewBody(ctx, info, off, length, r), nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	if ctx.Err() != nil {
		return objstore.Info{}, objstore.Ended(ctx, objstore.OpHead, key)
	}
	stat, err := s.core.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return objstore.Info{}, failure(objstore.OpHead, key, false, err)
	}
	return infoOf(key, stat), nil
}

func infoOf(key string, stat minio.ObjectInfo) objstore.Info {
	info := objstore.Info{Key: key, Size: stat.Size, Version: objstore.Version(stat.ETag), Modified: stat.LastModified}
	info.CRC32C, info.HasCRC = crcOf(stat.UserMetadata)
	return info
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := objstore.CheckPrefix(prefix); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		owner := false
		found := s.core.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{
			Prefix: prefix, StartAfter: after, Recursive: true, FetchOwner: &owner,
		})
		for o := range found {
			if o.Err != nil {
				yield(objstore.Info{}, failure(objstore.OpList, prefix, false, o.Err))
				return
			}
			if strings.HasSuffix(o.Key, "/") {
				continue // a folder that somebody made to look at
			}
			if !yield(infoOf(o.Key, o), nil) {
				return
			}
		}
		if ctx.Err() != nil { // the library just stops
			yield(objstore.Info{}, objstore.Ended(ctx, objstore.OpList, prefix))
		}
	}
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return objstore.Ended(ctx, objstore.OpDelete, key)
	}
	err := s.core.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{})
	if err == nil {
		return nil
	}
	if err = failure(objstore.OpDelete, key, true, err); errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("bucket %s: %w", s.bucket, err)
}
