;; Products of int8 rows with an int8 vector that is held in 16 bits: exact whole numbers, then scaled and added.
;; Rows are `width` bytes wide, a multiple of 16; out[r] += sum * (worth * scales[r]), rounded once.
(module
  (import "arithmetic" "memory" (memory 1))
  (func (export "product")
    (param $weights i32) (param $scales i32) (param $rows i32) (param $width i32)
    (param $vector i32) (param $worth f32) (param $out i32)
    (local $at i32) (local $end i32) (local $one v128) (local $two v128)
    (local.set $end (i32.add (local.get $vector) (i32.shl (local.get $width) (i32.const 1))))
    (loop $row
      (local.set $one (v128.const i32x4 0 0 0 0))
      (local.set $two (v128.const i32x4 0 0 0 0))
      (local.set $at (local.get $vector))
      (loop $column
        (local.set $one (i32x4.add (local.get $one)
          (i32x4.dot_i16x8_s (v128.load8x8_s (local.get $weights)) (v128.load (local.get $at)))))
        (local.set $two (i32x4.add (local.get $two)
          (i32x4.dot_i16x8_s (v128.load8x8_s offset=8 (local.get $weights)) (v128.load offset=16 (local.get $at)))))
        (local.set $weights (i32.add (local.get $weights) (i32.const 16)))
        (local.set $at (i32.add (local.get $at) (i32.const 32)))
        (br_if $column (i32.lt_u (local.get $at) (local.get $end))))
      (local.set $one (i32x4.add (local.get $one) (local.get $two)))
      (f32.store (local.get $out) (f32.demote_f64 (f64.add
        (f64.promote_f32 (f32.load (local.get $out)))
        (f64.mul
          (f64.promote_f32 (f32.mul (local.get $worth) (f32.load (local.get $scales))))
          (f64.convert_i32_s (i32.add
            (i32.add (i32x4.extract_lane 0 (local.get $one)) (i32x4.extract_lane 1 (local.get $one)))
            (i32.add (i32x4.extract_lane 2 (local.get $one)) (i32x4.extract_lane 3 (local.get $one)))))))))
      (local.set $out (i32.add (local.get $out) (i32.const 4)))
      (local.set $scales (i32.add (local.get $scales) (i32.const 4)))
      (br_if $row (local.tee $rows (i32.sub (local.get $rows) (i32.const 1)))))))
