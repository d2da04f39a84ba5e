;; What a translator computes with, four or eight numbers at once.
(module
  (import "arithmetic" "memory" (memory 1))

  ;; Products of int8 rows with int8 vectors that are held in 16 bits: exact whole numbers, then scaled and added.
  ;; Of four rows, 16 numbers each stand side by side; `width` is a multiple of 16, `rows` one of 4. Four rows meet
  ;; all vectors while they are in the cache. out[v][r] += sum * (worths[v] * scales[r]), rounded once; `stride` is
  ;; the bytes from a vector's results to the next one's.
  (func (export "product")
    (param $weights i32) (param $scales i32) (param $rows i32) (param $width i32)
    (param $vectors i32) (param $worths i32) (param $count i32) (param $out i32) (param $stride i32)
    (local $at i32) (local $end i32) (local $from i32) (local $to i32) (local $v i32) (local $x v128)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128) (local $worth v128) (local $sums v128)
    (loop $four
      (local.set $v (i32.const 0))
      (local.set $at (local.get $vectors))
      (local.set $to (local.get $out))
      (loop $vector
        (local.set $a (v128.const i32x4 0 0 0 0))
        (local.set $b (v128.const i32x4 0 0 0 0))
        (local.set $c (v128.const i32x4 0 0 0 0))
        (local.set $d (v128.const i32x4 0 0 0 0))
        (local.set $from (local.get $weights))
        (local.set $end (i32.add (local.get $at) (i32.shl (local.get $width) (i32.const 1))))
        (loop $column
          (local.set $x (v128.load (local.get $at)))
          (local.set $a (i32x4.add (local.get $a) (i32x4.dot_i16x8_s (v128.load8x8_s (local.get $from)) (local.get $x))))
          (local.set $b (i32x4.add (local.get $b) (i32x4.dot_i16x8_s (v128.load8x8_s offset=16 (local.get $from)) (local.get $x))))
          (local.set $c (i32x4.add (local.get $c) (i32x4.dot_i16x8_s (v128.load8x8_s offset=32 (local.get $from)) (local.get $x))))
          (local.set $d (i32x4.add (local.get $d) (i32x4.dot_i16x8_s (v128.load8x8_s offset=48 (local.get $from)) (local.get $x))))
          (local.set $x (v128.load offset=16 (local.get $at)))
          (local.set $a (i32x4.add (local.get $a) (i32x4.dot_i16x8_s (v128.load8x8_s offset=8 (local.get $from)) (local.get $x))))
          (local.set $b (i32x4.add (local.get $b) (i32x4.dot_i16x8_s (v128.load8x8_s offset=24 (local.get $from)) (local.get $x))))
          (local.set $c (i32x4.add (local.get $c) (i32x4.dot_i16x8_s (v128.load8x8_s offset=40 (local.get $from)) (local.get $x))))
          (local.set $d (i32x4.add (local.get $d) (i32x4.dot_i16x8_s (v128.load8x8_s offset=56 (local.get $from)) (local.get $x))))
          (local.set $from (i32.add (local.get $from) (i32.const 64)))
          (local.set $at (i32.add (local.get $at) (i32.const 32)))
          (br_if $column (i32.lt_u (local.get $at) (local.get $end))))
        ;; The four sums side by side.
        (local.set $a (i32x4.add
          (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $a) (local.get $b))
          (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $a) (local.get $b))))
        (local.set $c (i32x4.add
          (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $c) (local.get $d))
          (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $c) (local.get $d))))
        (local.set $sums (i32x4.add
          (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $a) (local.get $c))
          (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $a) (local.get $c))))
        (local.set $worth (f32x4.mul (v128.load32_splat (i32.add (local.get $worths) (i32.shl (local.get $v) (i32.const 2))))
          (v128.load (local.get $scales))))
        (v128.store64_lane 0 (local.get $to) (f32x4.demote_f64x2_zero (f64x2.add
          (f64x2.promote_low_f32x4 (v128.load64_zero (local.get $to)))
          (f64x2.mul (f64x2.promote_low_f32x4 (local.get $worth)) (f64x2.convert_low_i32x4_s (local.get $sums))))))
        (local.set $sums (i64x2.splat (i64x2.extract_lane 1 (local.get $sums))))
        (local.set $worth (i64x2.splat (i64x2.extract_lane 1 (local.get $worth))))
        (v128.store64_lane offset=8 0 (local.get $to) (f32x4.demote_f64x2_zero (f64x2.add
          (f64x2.promote_low_f32x4 (v128.load64_zero offset=8 (local.get $to)))
          (f64x2.mul (f64x2.promote_low_f32x4 (local.get $worth)) (f64x2.convert_low_i32x4_s (local.get $sums))))))
        (local.set $to (i32.add (local.get $to) (local.get $stride)))
        (br_if $vector (i32.lt_u (local.tee $v (i32.add (local.get $v) (i32.const 1))) (local.get $count))))
      (local.set $weights (i32.add (local.get $weights) (i32.shl (local.get $width) (i32.const 2))))
      (local.set $scales (i32.add (local.get $scales) (i32.const 16)))
      (local.set $out (i32.add (local.get $out) (i32.const 16)))
      (br_if $four (local.tee $rows (i32.sub (local.get $rows) (i32.const 4))))))

  ;; e^x of four numbers: 2^n * e^r with a whole n and |r| <= ln 2 / 2, whose series is cut after r^7 / 7!; 0 where that is
  ;; below the smallest normal number, and NaN of NaN.
  (func $exp (param $x v128) (result v128)
    (local $n v128) (local $r v128)
    (local.set $n (f32x4.min (f32x4.max (local.get $x) (v128.const f32x4 -87.33654 -87.33654 -87.33654 -87.33654))
      (v128.const f32x4 88.72283 88.72283 88.72283 88.72283)))
    (local.set $r (local.get $n))
    (local.set $n (f32x4.nearest (f32x4.mul (local.get $n) (v128.const f32x4 1.4426950408889634 1.4426950408889634 1.4426950408889634 1.4426950408889634))))
    ;; ln 2 in two parts, of which the first times n is exact.
    (local.set $r (f32x4.sub (local.get $r) (f32x4.mul (local.get $n) (v128.const f32x4 0.693359375 0.693359375 0.693359375 0.693359375))))
    (local.set $r (f32x4.add (local.get $r) (f32x4.mul (local.get $n) (v128.const f32x4 2.12194440e-4 2.12194440e-4 2.12194440e-4 2.12194440e-4))))
    (f32x4.mul (local.get $r) (v128.const f32x4 1.98412698e-4 1.98412698e-4 1.98412698e-4 1.98412698e-4))
    (f32x4.mul (f32x4.add (v128.const f32x4 1.38888889e-3 1.38888889e-3 1.38888889e-3 1.38888889e-3)) (local.get $r))
    (f32x4.mul (f32x4.add (v128.const f32x4 8.33333333e-3 8.33333333e-3 8.33333333e-3 8.33333333e-3)) (local.get $r))
    (f32x4.mul (f32x4.add (v128.const f32x4 4.16666667e-2 4.16666667e-2 4.16666667e-2 4.16666667e-2)) (local.get $r))
    (f32x4.mul (f32x4.add (v128.const f32x4 0.166666667 0.166666667 0.166666667 0.166666667)) (local.get $r))
    (f32x4.mul (f32x4.add (v128.const f32x4 0.5 0.5 0.5 0.5)) (local.get $r))
    (f32x4.mul (f32x4.add (v128.const f32x4 1 1 1 1)) (local.get $r))
    (f32x4.add (v128.const f32x4 1 1 1 1))
    (i32x4.add (i32x4.shl (i32x4.trunc_sat_f32x4_s (local.get $n)) (i32.const 23)))
    (v128.bitselect
      (v128.and (local.get $x) (f32x4.ne (local.get $x) (local.get $x)))
      (f32x4.gt (local.get $x) (v128.const f32x4 -87.33654 -87.33654 -87.33654 -87.33654))))

  ;; The sum of e^{x - most} of numbers at `at`, a multiple of 4 of them.
  (func (export "sumOfExponentials") (param $at i32) (param $count i32) (param $most f32) (result f64)
    (local $end i32) (local $sums v128) (local $x v128) (local $top v128)
    (local.set $end (i32.add (local.get $at) (i32.shl (local.get $count) (i32.const 2))))
    (local.set $top (f32x4.splat (local.get $most)))
    (loop $next
      (local.set $x (call $exp (f32x4.sub (v128.load (local.get $at)) (local.get $top))))
      (local.set $sums (f64x2.add (local.get $sums) (f64x2.promote_low_f32x4 (local.get $x))))
      (local.set $x (i64x2.splat (i64x2.extract_lane 1 (local.get $x))))
      (local.set $sums (f64x2.add (local.get $sums) (f64x2.promote_low_f32x4 (local.get $x))))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $end))))
    (f64.add (f64x2.extract_lane 0 (local.get $sums)) (f64x2.extract_lane 1 (local.get $sums))))

  ;; 1 / (1 + e^{-x}) in the place of x.
  (func (export "sigmoids") (param $at i32) (param $count i32)
    (local $end i32)
    (local.set $end (i32.add (local.get $at) (i32.shl (local.get $count) (i32.const 2))))
    (loop $next
      (v128.store (local.get $at) (f32x4.div (v128.const f32x4 1 1 1 1)
        (f32x4.add (v128.const f32x4 1 1 1 1) (call $exp (f32x4.neg (v128.load (local.get $at)))))))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $end)))))

  ;; tanh x = 1 - 2 / (1 + e^{2x}) in the place of x.
  (func (export "tanhs") (param $at i32) (param $count i32)
    (local $end i32) (local $x v128)
    (local.set $end (i32.add (local.get $at) (i32.shl (local.get $count) (i32.const 2))))
    (loop $next
      (local.set $x (v128.load (local.get $at)))
      (v128.store (local.get $at) (f32x4.sub (v128.const f32x4 1 1 1 1) (f32x4.div (v128.const f32x4 2 2 2 2)
        (f32x4.add (v128.const f32x4 1 1 1 1) (call $exp (f32x4.add (local.get $x) (local.get $x)))))))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $end)))))

  ;; For each place the sum of v * tanh(q + k) = v - 2v / (1 + e^{2q} * e^{2k}), of which the exponentials are given, in
  ;; float64; `width` is a multiple of 2.
  (func (export "additive")
    (param $keys i32) (param $places i32) (param $width i32) (param $query i32) (param $v i32) (param $out i32)
    (local $k i32) (local $end i32) (local $sum v128) (local $w v128)
    (local.set $end (i32.shl (local.get $width) (i32.const 3)))
    (loop $place
      (local.set $sum (v128.const f64x2 0 0))
      (local.set $k (i32.const 0))
      (loop $next
        (local.set $w (v128.load (i32.add (local.get $v) (local.get $k))))
        (local.set $sum (f64x2.add (local.get $sum) (f64x2.sub (local.get $w) (f64x2.div
          (f64x2.add (local.get $w) (local.get $w))
          (f64x2.add (v128.const f64x2 1 1) (f64x2.mul
            (v128.load (i32.add (local.get $query) (local.get $k))) (v128.load (local.get $keys))))))))
        (local.set $keys (i32.add (local.get $keys) (i32.const 16)))
        (br_if $next (i32.lt_u (local.tee $k (i32.add (local.get $k) (i32.const 16))) (local.get $end))))
      (f64.store (local.get $out) (f64.add (f64x2.extract_lane 0 (local.get $sum)) (f64x2.extract_lane 1 (local.get $sum))))
      (local.set $out (i32.add (local.get $out) (i32.const 8)))
      (br_if $place (local.tee $places (i32.sub (local.get $places) (i32.const 1))))))

  ;; Adds weight * vector of each place to `sums`, in float64; vectors in float32, `width` is a multiple of 2.
  (func (export "average")
    (param $vectors i32) (param $places i32) (param $width i32) (param $weights i32) (param $sums i32)
    (local $k i32) (local $end i32) (local $weight v128)
    (local.set $end (i32.add (local.get $sums) (i32.shl (local.get $width) (i32.const 3))))
    (loop $place
      (local.set $weight (v128.load64_splat (local.get $weights)))
      (local.set $k (local.get $sums))
      (loop $next
        (v128.store (local.get $k) (f64x2.add (v128.load (local.get $k))
          (f64x2.mul (local.get $weight) (f64x2.promote_low_f32x4 (v128.load64_zero (local.get $vectors))))))
        (local.set $vectors (i32.add (local.get $vectors) (i32.const 8)))
        (br_if $next (i32.lt_u (local.tee $k (i32.add (local.get $k) (i32.const 16))) (local.get $end))))
      (local.set $weights (i32.add (local.get $weights) (i32.const 8)))
      (br_if $place (local.tee $places (i32.sub (local.get $places) (i32.const 1)))))))
