//! What a kernel is launched with.

use std::ffi::c_void;

use super::{Address, CudaView, CudaViewMut};
use crate::device::Element;

/// An argument of a kernel: a pointer or a number.
pub(crate) trait Argument {
    /// Where its bytes are on the host, as `cuLaunchKernel` wants to know.
    fn pointer(&mut self) -> *mut c_void;
}

macro_rules! arguments {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn pointer(&mut self) -> *mut c_void {
                (&raw mut *self).cast()
            }
        }
    )*};
}

arguments!(Address, u32, u64, i32, f32);

impl<T: Element> Argument for CudaView<'_, T> {
    fn pointer(&mut self) -> *mut c_void {
        self.address_mut().pointer()
    }
}

impl<T: Element> Argument for CudaViewMut<'_, T> {
    fn pointer(&mut self) -> *mut c_void {
        self.address_mut().pointer()
    }
}

/// A view that may be missing, which a kernel sees as a null pointer.
impl<T: Element> Argument for Option<CudaView<'_, T>> {
    fn pointer(&mut self) -> *mut c_void {
        static NULL: Address = Address::NULL;
        match self {
            Some(view) => view.pointer(),
            // a driver only reads through it
            None => (&raw const NULL).cast_mut().cast(),
        }
    }
}

/// All arguments of a kernel, in order: a tuple.
pub(crate) trait Arguments {
    /// Calls `launch` with a pointer to each.
    fn with_pointers<R>(self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

macro_rules! tuples {
    ($first:ident $($rest:ident)*) => {
        impl<$first: Argument, $($rest: Argument),*> Arguments for ($first, $($rest,)*) {
            #[allow(non_snake_case)]
            fn with_pointers<R>(self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                let (mut $first, $(mut $rest,)*) = self;
                launch(&mut [$first.pointer(), $($rest.pointer()),*])
            }
        }
        tuples!($($rest)*);
    };
    () => {};
}

// as many as attention has
tuples!(A B C D E F G H I J K L M N O P Q S T U V W X Y Z A1 B1 C1 D1 E1 F1 G1);
