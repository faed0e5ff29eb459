//! Tile registers for tests on processors without them. Such a processor refuses an AMX instruction with a signal,
//! whose handler performs the instruction and continues after it.
//!
//! So tests run the shipped code, instruction for instruction. The semantics of the instructions come from the Software
//! Developer's Manual, volume 2. Anything that it forbids ends the process, such as tiles that are not set up or whose
//! shapes do not match. Timing means nothing here: an instruction takes a microsecond or more.

use std::{
    cell::RefCell,
    ffi::{c_int, c_void},
    ptr,
    sync::Once,
};

/// The most rows of a tile, and the most words of a row.
const ROWS: usize = 16;
const WORDS: usize = 16;
const TILES: usize = 8;

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(State::NEW) };
}

/// Gives this process tiles from now on.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_illegal_instruction;
        // SAFETY: a `sigaction` of zeros is valid, and the handler has the signature that `SA_SIGINFO` requires.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, ptr::null_mut())
        };
        assert_eq!(done, 0, "no handler of signals: {}", std::io::Error::last_os_error());
    });
}

/// Performs the instruction, and those that follow it: a signal takes longer than all of them.
extern "C" fn on_illegal_instruction(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a context that is ours until the handler returns.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let mut done = 0;
    loop {
        let at = registers[libc::REG_RIP as usize] as *const u8;
        // SAFETY: this is code, whose longest instructions have 15 bytes; it does not end within 15 bytes after one of
        // these instructions, since the function has yet to return.
        let bytes = unsafe { std::slice::from_raw_parts(at, 15) };
        let Some((instruction, length)) = decode(bytes, registers) else {
            match done {
                0 => give_up(bytes, "this is no instruction of AMX"),
                _ => return,
            }
        };
        if let Err(why) = STATE.with(|state| state.borrow_mut().run(instruction)) {
            give_up(bytes, &why);
        }
        registers[libc::REG_RIP as usize] += length as i64;
        done += 1;
    }
}

fn give_up(instruction: &[u8], why: &str) -> ! {
    eprintln!("illegal instruction {instruction:02x?}: {why}");
    std::process::abort()
}

/// An instruction of AMX; numbers are those of tiles, addresses those of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Instruction {
    Configure { from: usize },
    Release,
    Zero { tile: usize },
    Load { tile: usize, from: usize, stride: usize },
    Store { tile: usize, to: usize, stride: usize },
    Multiply { bytes: bool, sum: usize, rows: usize, lines: usize },
}

/// Decodes an instruction and its length, given the values of the general registers.
fn decode(bytes: &[u8], registers: &[i64; 23]) -> Option<(Instruction, usize)> {
    // a VEX prefix of three bytes: the inverted bits 3 of register, index and base, the table 0F 38; then W, the
    // inverted second source, the vector length and the kind of prefix
    let &[0xc4, first, second, opcode, mod_rm, ..] = bytes else { return None };
    if first & 0x1f != 2 || second & 0x84 != 0 {
        return None;
    }
    let high = |bit: u8| usize::from(first >> bit & 1 ^ 1) << 3;
    let register = usize::from(mod_rm >> 3 & 7) + high(7);
    let source = usize::from(!(second >> 3) & 15);
    let (in_registers, rm) = (mod_rm >> 6 == 3, usize::from(mod_rm & 7));
    let [none, operand_size, scalar_single, scalar_double] = [0, 1, 2, 3].map(|prefix| second & 3 == prefix);
    let address = || address(&bytes[4..], high(6), high(5), registers);
    let only_tiles = register < TILES && rm + high(5) < TILES && source < TILES;
    Some(match opcode {
        0x49 if none && mod_rm == 0xc0 => (Instruction::Release, 5),
        0x49 if none && !in_registers && register == 0 => {
            let (from, _, length) = address()?;
            (Instruction::Configure { from }, 4 + length)
        }
        0x49 if scalar_double && in_registers && rm == 0 => (Instruction::Zero { tile: register }, 5),
        0x4b if scalar_double && !in_registers && rm == 4 => {
            let (from, stride, length) = address()?;
            (Instruction::Load { tile: register, from, stride }, 4 + length)
        }
        0x4b if scalar_single && !in_registers && rm == 4 => {
            let (to, stride, length) = address()?;
            (Instruction::Store { tile: register, to, stride }, 4 + length)
        }
        0x5c if scalar_single && in_registers && only_tiles => {
            (Instruction::Multiply { bytes: false, sum: register, rows: rm, lines: source }, 5)
        }
        0x5e if operand_size && in_registers && only_tiles => {
            (Instruction::Multiply { bytes: true, sum: register, rows: rm, lines: source }, 5)
        }
        _ => return None,
    })
}

/// Decodes an operand in memory: its address without the index, the index times its scale, and the number of bytes of
/// ModRM, SIB and displacement.
fn address(
    bytes: &[u8],
    index_high: usize,
    base_high: usize,
    registers: &[i64; 23],
) -> Option<(usize, usize, usize)> {
    const OF_NUMBER: [c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let value = |number: usize| registers[OF_NUMBER[number] as usize] as usize;
    let (mode, rm) = (bytes[0] >> 6, usize::from(bytes[0] & 7));
    let (base, index, before) = match rm {
        4 => {
            let (base, index) =
                (usize::from(bytes[1] & 7) + base_high, usize::from(bytes[1] >> 3 & 7) + index_high);
            // number 4 stands for no index
            (base, if index == 4 { 0 } else { value(index) << (bytes[1] >> 6) }, 2)
        }
        _ => (rm + base_high, 0, 1),
    };
    let (displacement, length) = match mode {
        // no base, or relative to the instruction pointer
        0 if base & 7 == 5 => return None,
        0 => (0, before),
        1 => (isize::from(bytes[before] as i8), before + 1),
        _ => {
            let displacement = bytes[before..before + 4].try_into().map(i32::from_le_bytes).ok()?;
            (displacement as isize, before + 4)
        }
    };
    Some((value(base).wrapping_add_signed(displacement), index, length))
}

#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    /// Words of each row.
    width: usize,
    values: [[u32; WORDS]; ROWS],
}

/// The tiles of a thread.
struct State {
    is_set_up: bool,
    tiles: [Tile; TILES],
}

impl State {
    const NEW: State =
        State { is_set_up: false, tiles: [Tile { rows: 0, width: 0, values: [[0; WORDS]; ROWS] }; TILES] };

    fn run(&mut self, instruction: Instruction) -> Result<(), String> {
        match instruction {
            Instruction::Configure { from } => {
                // SAFETY: an operand of 64 bytes, for which the code that contains the instruction vouches.
                let config = unsafe { ptr::read_unaligned(from as *const [u8; 64]) };
                self.configure(&config)
            }
            Instruction::Release => {
                *self = State::NEW;
                Ok(())
            }
            Instruction::Zero { tile } => {
                self.tile(tile)?.values = [[0; WORDS]; ROWS];
                Ok(())
            }
            Instruction::Load { tile, from, stride } => {
                let tile = self.tile(tile)?;
                tile.values = [[0; WORDS]; ROWS];
                for row in 0..tile.rows {
                    let from = from.wrapping_add(row * stride) as *const u8;
                    // SAFETY: an operand in memory, for which the code that contains the instruction vouches.
                    unsafe {
                        ptr::copy_nonoverlapping(from, tile.values[row].as_mut_ptr().cast(), 4 * tile.width)
                    };
                }
                Ok(())
            }
            Instruction::Store { tile, to, stride } => {
                let tile = self.tile(tile)?;
                for row in 0..tile.rows {
                    let to = to.wrapping_add(row * stride) as *mut u8;
                    // SAFETY: as above.
                    unsafe { ptr::copy_nonoverlapping(tile.values[row].as_ptr().cast(), to, 4 * tile.width) };
                }
                Ok(())
            }
            Instruction::Multiply { bytes, sum, rows, lines } => self.multiply(bytes, sum, rows, lines),
        }
    }

    fn configure(&mut self, config: &[u8; 64]) -> Result<(), String> {
        if config[0] != 1 || config[1] != 0 || config[2..16].iter().any(|byte| *byte != 0) {
            return Err(format!("this describes no tiles: {config:?}"));
        }
        *self = State { is_set_up: true, ..State::NEW };
        for number in 0..ROWS {
            let width = usize::from(u16::from_le_bytes([config[16 + 2 * number], config[17 + 2 * number]]));
            let rows = usize::from(config[48 + number]);
            if (rows, width) == (0, 0) {
                continue;
            }
            // widths other than whole words are allowed, but not used
            let is_shape = (1..=ROWS).contains(&rows) && (1..=4 * WORDS).contains(&width) && width % 4 == 0;
            if number >= TILES || !is_shape {
                return Err(format!("tile {number} cannot have {rows} rows of {width} bytes"));
            }
            (self.tiles[number].rows, self.tiles[number].width) = (rows, width / 4);
        }
        Ok(())
    }

    fn tile(&mut self, number: usize) -> Result<&mut Tile, String> {
        if !self.is_set_up {
            return Err("no tiles are set up".to_owned());
        }
        self.tiles
            .get_mut(number)
            .filter(|tile| tile.rows > 0)
            .ok_or_else(|| format!("tile {number} has no rows"))
    }

    fn multiply(&mut self, bytes: bool, sum: usize, rows: usize, lines: usize) -> Result<(), String> {
        let (x, w) = (*self.tile(rows)?, *self.tile(lines)?);
        let sums = self.tile(sum)?;
        let fits = sum != rows
            && sum != lines
            && rows != lines
            && sums.rows == x.rows
            && sums.width == w.width
            && x.width == w.rows;
        if !fits {
            return Err(format!("tiles {sum}, {rows} and {lines} do not meet"));
        }
        for row in 0..sums.rows {
            // SAFETY: tests emulate tiles only with AVX-512, and no processor has that without FMA.
            unsafe {
                if bytes {
                    add_bytes(&mut sums.values[row], &x.values[row], &w);
                } else {
                    add_bf16(&mut sums.values[row], &x.values[row], &w);
                }
            }
        }
        Ok(())
    }
}

/// TDPBUSD for a row of sums: unsigned bytes times signed bytes.
#[target_feature(enable = "avx2,fma")]
fn add_bytes(sums: &mut [u32; WORDS], x: &[u32; WORDS], w: &Tile) {
    for (x, w) in x.iter().zip(&w.values[..w.rows]) {
        for byte in 0..4 {
            let x = (x >> (8 * byte) & 0xff) as i32;
            for column in 0..WORDS {
                let w = ((w[column] << (24 - 8 * byte)) as i32) >> 24;
                sums[column] = sums[column].wrapping_add((x * w) as u32);
            }
        }
    }
}

/// TDPBF16PS for a row of sums: one chain of the lower halves and one of the upper halves, from zero, which are added
/// to each other and then to the sum; subnormal numbers are zeros everywhere.
#[target_feature(enable = "avx2,fma")]
fn add_bf16(sums: &mut [u32; WORDS], x: &[u32; WORDS], w: &Tile) {
    let mut chains = [[0.0f32; WORDS]; 2];
    for (x, w) in x.iter().zip(&w.values[..w.rows]) {
        for (upper, chain) in chains.iter_mut().enumerate() {
            let x = half(*x, upper);
            for column in 0..WORDS {
                chain[column] = flushed(x.mul_add(half(w[column], upper), chain[column]));
            }
        }
    }
    for column in 0..WORDS {
        let products = flushed(chains[0][column] + chains[1][column]);
        sums[column] = flushed(flushed(f32::from_bits(sums[column])) + products).to_bits();
    }
}

/// The bf16 in one half of a word.
#[inline(always)]
fn half(word: u32, upper: usize) -> f32 {
    flushed(f32::from_bits((word << (16 - 16 * upper)) & 0xffff_0000))
}

/// Flushes a subnormal number to a zero of the same sign.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_read_as_an_assembler_writes_them() {
        let mut registers = [0; 23];
        registers[libc::REG_RAX as usize] = 1000;
        registers[libc::REG_R9 as usize] = 2000;
        registers[libc::REG_RCX as usize] = 64;
        registers[libc::REG_R12 as usize] = 128;
        let read = |bytes: &[u8]| decode(&[bytes, &[0x90; 15]].concat(), &registers);
        let expected: [(&[u8], Option<Instruction>); 12] = [
            // ldtilecfg [rax]; ldtilecfg [r9 + 16]; tilerelease; tilezero tmm3
            (&[0xc4, 0xe2, 0x78, 0x49, 0x00], Some(Instruction::Configure { from: 1000 })),
            (&[0xc4, 0xc2, 0x78, 0x49, 0x41, 0x10], Some(Instruction::Configure { from: 2016 })),
            (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Some(Instruction::Release)),
            (&[0xc4, 0xe2, 0x7b, 0x49, 0xd8], Some(Instruction::Zero { tile: 3 })),
            // tileloadd tmm6, [rax + rcx]; tileloadd tmm7, [r9 + r12 + 64]; tileloadd tmm1, [rax + rcx + 1024]
            (
                &[0xc4, 0xe2, 0x7b, 0x4b, 0x34, 0x08],
                Some(Instruction::Load { tile: 6, from: 1000, stride: 64 }),
            ),
            (
                &[0xc4, 0x82, 0x7b, 0x4b, 0x7c, 0x21, 0x40],
                Some(Instruction::Load { tile: 7, from: 2064, stride: 128 }),
            ),
            (
                &[0xc4, 0xe2, 0x7b, 0x4b, 0x8c, 0x08, 0x00, 0x04, 0x00, 0x00],
                Some(Instruction::Load { tile: 1, from: 2024, stride: 64 }),
            ),
            // tilestored [rax + rcx], tmm2; tdpbf16ps tmm0, tmm4, tmm6; tdpbusd tmm3, tmm5, tmm7
            (
                &[0xc4, 0xe2, 0x7a, 0x4b, 0x14, 0x08],
                Some(Instruction::Store { tile: 2, to: 1000, stride: 64 }),
            ),
            (
                &[0xc4, 0xe2, 0x4a, 0x5c, 0xc4],
                Some(Instruction::Multiply { bytes: false, sum: 0, rows: 4, lines: 6 }),
            ),
            (
                &[0xc4, 0xe2, 0x41, 0x5e, 0xdd],
                Some(Instruction::Multiply { bytes: true, sum: 3, rows: 5, lines: 7 }),
            ),
            // ud2, and a multiplication with signs on both sides
            (&[0x0f, 0x0b], None),
            (&[0xc4, 0xe2, 0x43, 0x5e, 0xdd], None),
        ];
        for (bytes, want) in expected {
            let got = read(bytes);
            assert_eq!(got.map(|(instruction, _)| instruction), want, "{bytes:02x?}");
            assert!(got.is_none_or(|(_, length)| length == bytes.len()), "{bytes:02x?}: {got:?}");
        }
    }

    #[test]
    fn what_is_forbidden_is_told() {
        let config = |tiles: &[(usize, u8, u8)]| {
            let mut config = [0; 64];
            config[0] = 1;
            for (tile, rows, width) in tiles {
                (config[48 + tile], config[16 + 2 * tile]) = (*rows, *width);
            }
            config
        };
        let mut state = State::NEW;
        assert_eq!(state.run(Instruction::Zero { tile: 0 }).unwrap_err(), "no tiles are set up");
        assert!(state.configure(&[0; 64]).unwrap_err().starts_with("this describes no tiles"));
        assert_eq!(
            state.configure(&config(&[(2, 17, 64)])).unwrap_err(),
            "tile 2 cannot have 17 rows of 64 bytes"
        );
        assert_eq!(
            state.configure(&config(&[(8, 1, 64)])).unwrap_err(),
            "tile 8 cannot have 1 rows of 64 bytes"
        );
        state.configure(&config(&[(0, 2, 64), (4, 2, 64), (6, 16, 64), (7, 15, 64)])).unwrap();
        assert_eq!(state.multiply(false, 0, 4, 7).unwrap_err(), "tiles 0, 4 and 7 do not meet");
        assert_eq!(state.multiply(false, 0, 5, 6).unwrap_err(), "tile 5 has no rows");
    }
}
